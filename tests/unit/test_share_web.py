"""Web servers as remotes, honest and hostile: cut off, crawling, redirecting, with listings of all kinds."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from share_helpers import content, make_cache

from embedcache.errors import RemoteError
from embedcache.share import pull, push
from embedcache.share.places import web
from embedcache.share.places.web import WebPlace

pytestmark = pytest.mark.usefixtures("no_pauses")


SECRET = "s3cr3t"  # noqa: S105 - to be looked for in messages
Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/remote"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def answering(answer: Answer) -> Iterator[WebPlace]:
    """Serve the same answer to whatever is asked."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        do_HEAD = do_GET  # noqa: N815 - the name it has there

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
            pass

    with serving(Handler) as url:
        yield WebPlace(url)


def page(body: bytes, *headers: tuple[str, str], status: int = 200) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


@pytest.mark.parametrize(
    "body",
    [
        b"<a href='a'>a</a><![<!--<a href='b'>",
        b"<![" * 1000 + b"<a href=a>",
        b"<A\n class=x HREF=\"a\" title='y'>a</A>",
        b"<a href=\"http://[/x\"></a><a href='a'>",
        b"<a href='http://[::1/remote/'></a><a href='&#97;'>",
        b"\xff\xfe<a href='a'>",
    ],
    ids=lambda body: repr(body)[:25],
)
def test_listings_of_all_kinds_are_read(body: bytes) -> None:
    with answering(page(body)) as place:
        assert place.list("").keys() >= {"a"}


@pytest.mark.parametrize("piece", [b"<a ", b"<a href='", b"<!--", b"<a b=c ", b"&#", b"<a href=", b"href="])
def test_no_listing_takes_long(piece: bytes) -> None:
    began = time.monotonic()
    with answering(page(piece * (2_000_000 // len(piece)))) as place:
        assert len(place.list("")) < 10
    assert time.monotonic() - began < 30


def test_a_listing_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "LARGEST_LISTING", 1000)
    with answering(page(b"<a href='a'>" * 1000)) as place, pytest.raises(OSError, match="more than 1,000"):
        place.list("")


def test_a_listing_that_is_cut_off_is_not_taken_for_a_shorter_one() -> None:
    with (
        answering(page(b"<a href='a'>", ("Content-Length", "500"))) as place,
        pytest.raises(OSError, match="12 of 500 bytes arrived"),
    ):
        place.list("")


def test_a_body_that_is_cut_off_is_told_of() -> None:
    chunked = page(b"5\r\nhello\r\n50\r\nworld", ("Transfer-Encoding", "chunked"))

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.protocol_version = "HTTP/1.1"
        handler.close_connection = True
        chunked(handler)

    with answering(answer) as place, pytest.raises(OSError, match="broke off"):
        b"".join(place.blocks("x", 10))


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "x", "٣", "1e9", ""])
def test_a_length_that_is_none_is_not_believed(length: str) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(f"HTTP/1.0 200 OK\r\nContent-Length: {length}\r\n\r\n".encode())

    with answering(answer) as place:
        stat = place.stat("x")
    assert stat is not None
    assert stat.bytes is None


def test_a_server_that_crawls_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "SLOW_SECONDS", 0.2)
    ended = threading.Event()

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while not ended.wait(0.02):
            handler.wfile.write(b"x")
            handler.wfile.flush()

    with answering(answer) as place:
        with pytest.raises(OSError, match="too slow"):
            b"".join(place.blocks("x", 1 << 20))
        ended.set()


@pytest.mark.parametrize(
    "target",
    [f"file:///etc/passwd?{SECRET}", f"ftp://host/x?{SECRET}", f"data:,{SECRET}", "http://[/x", "//"],
)
def test_redirects_to_what_is_no_web_address_are_not_followed(target: str) -> None:
    with (
        answering(page(b"x" * 9999, ("Location", target), status=302)) as place,
        pytest.raises(OSError, match=r"redirects|status|connection failed") as found,
    ):
        place.stat("x")
    assert SECRET not in str(found.value)


def test_redirects_never_lead_from_an_encrypted_address_to_an_open_one() -> None:
    handler = web._Redirects()
    request = web.Request("https://host/x")
    with pytest.raises(PermissionError, match="redirects from https to 'http'"):
        handler.redirect_request(request, None, 302, "", {}, f"http://host/x?{SECRET}")  # type: ignore[arg-type]
    followed = handler.redirect_request(request, None, 302, "", {}, "https://other/x")  # type: ignore[arg-type]
    assert followed is not None


def test_a_push_to_the_web_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache", ["a text"])
    # Nobody listens there.
    with pytest.raises(RemoteError, match=r"can only be read: push to a folder"):
        push(cache, "http://127.0.0.1:1/remote")


def test_redirects_to_web_addresses_are_followed() -> None:
    with answering(page(b"data")) as there:
        target = f"{there.where}/y"
        with answering(page(b"", ("Location", target), status=302)) as place:
            assert b"".join(place.blocks("x", 10)) == b"data"


def test_what_a_server_says_cannot_write_on_the_terminal(tmp_path: Path) -> None:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(b"\x1b[2J\x1b]0;evil\x07 200 OK\r\n\r\n")

    with answering(answer) as place, pytest.raises(RemoteError) as found:
        pull(tmp_path / "there", place.where)
    assert str(found.value).isprintable()
    assert not (tmp_path / "there").exists()


@pytest.mark.parametrize("status", [401, 403, 500])
def test_a_server_that_refuses_is_told_of(tmp_path: Path, status: int) -> None:
    asked = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        asked.append(handler.path)
        page(SECRET.encode(), status=status)(handler)

    with answering(answer) as place, pytest.raises(RemoteError, match=f"HTTP status {status}") as found:
        pull(tmp_path / "there", place.where)
    assert SECRET not in str(found.value)
    # What trying again does not help is asked for once.
    assert len(asked) == (5 if status == 500 else 1)


def test_a_folder_with_a_blank_in_its_name_is_pulled_from(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache")
    (tmp_path / "web" / "our team").mkdir(parents=True)
    push(cache, str(tmp_path / "web" / "our team"))
    handler = functools.partial(_Quiet, directory=str(tmp_path / "web"))
    with serving(handler) as url:
        pull(tmp_path / "there", f"{url.removesuffix('remote')}our%20team")
    assert content(tmp_path / "there") == content(cache.folder)


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        pass
