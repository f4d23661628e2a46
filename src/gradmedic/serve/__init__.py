"""The live page: a small server on this machine that shows runs while they train.

It binds to the loopback interface, answers GET and HEAD only, and hands out nothing but the page and the numbers of the
runs that it was given. Public: `Server`.
"""

from __future__ import annotations

from gradmedic.serve.server import Server as Server

__all__ = ["Server"]
