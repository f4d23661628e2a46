"""`gradmedic serve`: runs, live, in the browser."""

from __future__ import annotations

import argparse

from gradmedic.cli.command import FINE, add_language, say


class ServeCommand:
    """Shows runs while they train."""

    summary = "show runs live in the browser, on this machine only"
    example = "example: gradmedic serve runs --open"

    def prepare_parser(self, parser: argparse.ArgumentParser) -> None:
        """Add the options."""
        parser.add_argument(
            "runs",
            metavar="RUN",
            nargs="+",
            help="run folder, or a folder that holds several; one that does not exist yet is waited for",
        )
        parser.add_argument("--port", type=int, default=8321, help="port on 127.0.0.1; 0 takes any (default: 8321)")
        parser.add_argument("--open", action="store_true", help="open the page in the browser")
        add_language(parser)

    def run(self, args: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
        """Serve until Ctrl-C."""
        from gradmedic.serve.server import Server, open_later
        from gradmedic.serve.words import WORDS

        server = Server(args.runs, port=args.port, lang=args.lang)
        words = WORDS[args.lang]
        known = server.catalogue.count()
        count = words["runs"].format(n=known) if known > 1 else words["one_run" if known else "no_runs"]
        say(words["serving"].format(count=count, url=server.url))
        if args.open:
            open_later(server.url)
        server.run()
        return FINE
