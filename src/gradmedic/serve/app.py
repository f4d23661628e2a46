"""The application: a page, its script, two questions about runs, and nothing else."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

from gradmedic.report.needs import needed
from gradmedic.report.page.render import content_security_policy, plotly_script, render_page
from gradmedic.serve.catalogue import Catalogue

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Names under which a browser on this machine reaches the server. Any other name in `Host` was made to point here by
#: somebody else's name server, and comes with that site's script.
LOOPBACK: frozenset[str] = frozenset({"127.0.0.1", "localhost", "[::1]"})
_LONGEST_VERSION = 200
#: Seconds that the first answer waits for a run's tables; after them it goes without, and they come with the next one.
_PATIENCE = 5.0
#: Seconds that every other answer waits for tables that are just being read: without them they would be a second older.
_MOMENT = 0.4


def make_app(catalogue: Catalogue, lang: str) -> Application:
    """Return the ASGI application.

    Args:
        catalogue: the runs.
        lang: "en" or "zh", in which the page opens.

    Raises:
        InputError: starlette or plotly is not installed.
    """
    starlette = needed("starlette.applications", "serving needs starlette", "serve")
    routing = needed("starlette.routing", "serving needs starlette", "serve")
    answers = _Answers(catalogue, lang)
    routes = [
        routing.Route("/", answers.page),
        routing.Route("/plotly.js", answers.plotly),
        routing.Route("/favicon.ico", answers.icon),
        routing.Route("/api/runs", answers.runs),
        routing.Route("/api/runs/{number}", answers.run),
    ]
    app = starlette.Starlette(routes=routes, exception_handlers={404: answers.missing, 500: answers.broken})
    app.router.redirect_slashes = False
    return guarded(app)


def guarded(app: Application) -> Application:
    """Return the application behind a guard: GET and HEAD only, from this machine's own names, with strict headers."""
    policy = f"{content_security_policy(live=True)}; frame-ancestors 'none'"
    headers = [
        (b"content-security-policy", policy.encode("ascii")),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-resource-policy", b"same-origin"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"x-frame-options", b"DENY"),
    ]

    async def guard(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_strictly(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        if scope["method"] not in ("GET", "HEAD"):
            await _refuse(send_strictly, 405, "only GET and HEAD are answered", (b"allow", b"GET, HEAD"))
        elif _host(scope) not in LOOPBACK:
            await _refuse(send_strictly, 421, "this server answers to 127.0.0.1 and localhost only")
        else:
            await app(scope, receive, send_strictly)

    return guard


def _host(scope: Scope) -> str:
    """Return the name in `Host` without its port; "" where there is not exactly one."""
    named: list[str] = [value.decode("latin-1").strip().lower() for key, value in scope["headers"] if key == b"host"]
    if len(named) != 1:
        return ""
    host, colon, port = named[0].rpartition(":")
    return host if colon and port.isdecimal() else named[0]


async def _refuse(send: Send, status: int, text: str, *headers: tuple[bytes, bytes]) -> None:
    body = f'{{"error":"{text}"}}'.encode("ascii")
    length = (b"content-length", str(len(body)).encode("ascii"))
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [(b"content-type", b"application/json"), length, *headers]})
    await send({"type": "http.response.body", "body": body})


class _Answers:
    """What is said to each question."""

    def __init__(self, catalogue: Catalogue, lang: str) -> None:
        from starlette import concurrency, responses

        self._responses = responses
        self._in_thread = concurrency.run_in_threadpool
        self._catalogue = catalogue
        self._page = render_page(None, lang=lang, live=True)
        self._plotly = plotly_script().encode("utf-8")
        version = getattr(importlib.import_module("plotly"), "__version__", "")
        self._plotly_tag = f'"plotly-{version}-{len(self._plotly)}"'

    async def page(self, request: Request) -> Response:
        return self._responses.HTMLResponse(self._page, headers={"cache-control": "no-store"})

    async def plotly(self, request: Request) -> Response:
        headers = {"etag": self._plotly_tag, "cache-control": "public, max-age=86400"}
        if request.headers.get("if-none-match") == self._plotly_tag:
            return self._responses.Response(status_code=304, headers=headers)
        return self._responses.Response(self._plotly, headers=headers, media_type="text/javascript; charset=utf-8")

    async def icon(self, request: Request) -> Response:
        return self._responses.Response(status_code=204)

    async def runs(self, request: Request) -> Response:
        listing = await self._in_thread(self._catalogue.listing)
        return self._json(listing)

    async def run(self, request: Request) -> Response:
        number = request.path_params["number"]
        # Numbers only, and few digits of them: nothing here is ever part of a path.
        usable = number.isascii() and number.isdecimal() and len(number) < 7
        feed = await self._in_thread(self._catalogue.feed, int(number)) if usable else None
        if feed is None:
            return await self.missing(request)
        known = request.query_params.get("version", "")[:_LONGEST_VERSION]
        await self._in_thread(feed.ask)
        until = time.monotonic() + (_MOMENT if feed.ready else _PATIENCE)
        while not (feed.ready and feed.current) and time.monotonic() < until:
            await asyncio.sleep(0.02)
        body = await self._in_thread(feed.answer, known)
        if body is None:
            return self._responses.Response(status_code=204, headers={"cache-control": "no-store"})
        return self._responses.Response(body, headers={"cache-control": "no-store"}, media_type="application/json")

    async def missing(self, request: Request, error: Exception | None = None) -> Response:
        return self._json({"error": "there is nothing here"}, 404)

    async def broken(self, request: Request, error: Exception | None = None) -> Response:
        return self._json({"error": "this could not be answered"}, 500)

    def _json(self, content: Any, status: int = 200) -> Response:
        headers = {"cache-control": "no-store"}
        return self._responses.JSONResponse(content, status_code=status, headers=headers)
