"""A small web server that answers as it is told, and a table to fetch from it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from distill.evaluation.source_tables import Table

NEWS = b"4.5\tA cat sat  down .\tThe cat took a seat .\n0\tRain fell all day .\tShe reads a book .\n"
FORUM = "\tNobody judged this .\tNor this .\n2.25\tWhy ?\tWarum \u2026 ?\n".encode()
WRITTEN = (
    "subset\tscore\tsentence1\tsentence2\n"
    "news\t4.5\tA cat sat down .\tThe cat took a seat .\n"
    "news\t0\tRain fell all day .\tShe reads a book .\n"
    "forum\t2.25\tWhy ?\tWarum \u2026 ?\n"
)


@dataclass
class Site:
    """What the server offers: bytes by path, statuses to answer first, and the paths asked for."""

    address: str = ""
    pages: dict[str, bytes] = field(default_factory=lambda: {"/news.tsv": NEWS, "/forum.tsv": FORUM})
    failures: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


@contextmanager
def serving() -> Iterator[Site]:
    """Serve a site on a free port of this machine; ``/cut`` in a path: only half of the page is sent."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site.asked.append(self.path)
            if site.failures.get(self.path):
                self.send_error(site.failures[self.path].pop(0))
            elif self.path not in site.pages:
                self.send_error(404)
            else:
                body = site.pages[self.path]
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body[: len(body) // 2] if "cut" in self.path else body)

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_address[1]}/"
    try:
        yield site
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def table(site: Site, **changes: Any) -> Table:
    """Return a table of scored pairs in two subsets, ``news.tsv`` and ``forum.tsv`` of the site."""
    given: dict[str, Any] = {
        "file": "small_test.tsv",
        "set": "small",
        "source": "a site for tests",
        "base": site.address,
        "licence": "as you like",
        "columns": ["subset", "score", "sentence1", "sentence2"],
        "cells": ["score", "sentence1", "sentence2"],
        "part": ["subset"],
        "skip": {"score": ""},
        "parts": {
            "news": {"files": ["news.tsv"], "rows": 2},
            "forum": {"files": ["forum.tsv"], "rows": 1},
        },
    }
    return Table.model_validate({**given, **changes})
