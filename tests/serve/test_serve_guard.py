import socket

import pytest
from serve_client import Client, record

from gradmedic.report.page.render import content_security_policy
from gradmedic.serve import Server


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("guarded") / "exp"
    record(folder)
    (folder / "secret.txt").write_text("secret")
    with Server([folder], port=0) as server:
        yield Client(server)


PATHS = ["/", "/plotly.js", "/api/runs", "/api/runs/0"]


@pytest.mark.parametrize("path", [*PATHS, "/nothing"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_only_get_and_head(client, method, path):
    status, headers, body = client.ask(method, path)
    assert status == 405
    assert headers["allow"] == "GET, HEAD"
    assert b"numbers" not in body


@pytest.mark.parametrize("path", PATHS)
def test_head_is_get_without_a_body(client, path):
    status, headers, body = client.ask("HEAD", path)
    assert (status, body) == (200, b"")
    assert int(headers["content-length"]) > 10


@pytest.mark.parametrize("path", [*PATHS, "/nothing", "/api/runs/7"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_every_answer_has_strict_headers(client, method, path):
    _, headers, _ = client.ask(method, path)
    assert headers["content-security-policy"] == f"{content_security_policy(live=True)}; frame-ancestors 'none'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:1234", 200),
        ("LOCALHOST:8321", 200),
        ("[::1]:80", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:8321", 421),
        ("evil.example:127.0.0.1", 421),
        ("0.0.0.0", 421),
        ("192.168.0.1:8321", 421),
        ("", 421),
    ],
)
def test_another_name_for_this_machine_is_refused(client, host, status):
    assert client.ask("GET", "/api/runs", {"Host": host})[0] == status


def raw(client, text):
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as connection:
        connection.sendall(text)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_no_host_or_two_of_them(client):
    assert b" 421 " in raw(client, b"GET /api/runs HTTP/1.0\r\n\r\n").split(b"\r\n")[0]
    twice = raw(client, b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\nConnection: close\r\n\r\n")
    assert twice.split(b" ")[1] in (b"400", b"421")


@pytest.mark.parametrize(
    "path",
    [
        *("/nothing", "/api", "/api/", "/api/runs/", "/api/runs/1", "/api/runs/-1", "/api/runs/0/", "/api/runs/٠"),
        *("/api/runs/0x0", "/api/runs/00000000", "/api/runs/1e0", "/api/runs/0%2f..%2fsecret.txt", "/../secret.txt"),
        *("/secret.txt", "/api/runs/../../secret.txt", "/api/runs/..%5c..", "/run.json", "//etc/passwd", "/%00"),
    ],
)
def test_what_is_not_there_is_answered_in_json(client, path):
    line = b"GET " + path.encode() + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = raw(client, line)
    assert answer.split(b" ")[1] in (b"404", b"400")
    assert b"secret\n" not in answer
    if b" 404 " in answer.split(b"\r\n")[0]:
        assert b"content-type: application/json" in answer
        assert answer.endswith(b'{"error":"there is nothing here"}')


def test_the_page_and_its_script(client):
    status, headers, body = client.ask("GET", "/")
    assert status == 200
    assert headers["content-type"].startswith("text/html")
    assert headers["cache-control"] == "no-store"
    assert b"/plotly.js" in body
    status, headers, body = client.ask("GET", "/plotly.js")
    assert status == 200
    assert headers["content-type"].startswith("text/javascript")
    assert len(body) > 1_000_000
    assert "max-age" in headers["cache-control"]
    assert client.ask("GET", "/plotly.js", {"If-None-Match": headers["etag"]})[0] == 304


def test_the_icon_that_browsers_ask_for_is_no_error(client):
    assert client.ask("GET", "/favicon.ico")[0] == 204
