"""Servers that are silent, slow or gone: time limits, what is said meanwhile, blocks that suit the speed."""

from __future__ import annotations

import logging
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from embedcache.errors import RemoteError
from embedcache.share import retry
from embedcache.share.places import amazon, base, open_place, parse_location, sftp, web
from embedcache.share.places.base import growing_blocks
from embedcache.share.remote.remote import Remote
from embedcache.share.retry import FIRST_PAUSE_SECONDS, LaterError, retrying

SENT = b"0123456789" * 10


@pytest.fixture
def silent() -> Iterator[int]:
    """Accept connections and never answer; yield the port."""
    kept = []

    def accept() -> None:
        with suppress(OSError):
            while True:
                kept.append(listener.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    for connection in kept:
        connection.close()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(retry, "FIRST_PAUSE_SECONDS", 0.0)
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_REGION", "us-east-1"),
        ("HOME", str(tmp_path)),
    ):
        monkeypatch.setenv(name, value)


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a second where users wait ten."""
    for module, names in (
        (amazon, ("_CONNECT_SECONDS", "_READ_SECONDS")),
        (web, ("_TIMEOUT_SECONDS",)),
        (sftp, ("_BANNER_SECONDS", "_CONNECT_SECONDS")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, 1.0 if name != "_CONNECT_SECONDS" else 1.2)


def remote_at(kind: str, port: int) -> Remote:
    return Remote(
        parse_location(
            {
                "s3": f"s3://bucket/x?endpoint_override=127.0.0.1:{port}&scheme=http",
                "http": f"http://127.0.0.1:{port}/x",
                "sftp": f"sftp://ann@127.0.0.1:{port}/x",
            }[kind]
        )
    )


def test_all_tries_at_a_silent_server_take_about_a_minute() -> None:
    # Pauses double, and are half as long again at most.
    pauses = sum(1.5 * FIRST_PAUSE_SECONDS * 2**number for number in range(retry.TRIES - 1))
    longest = max(amazon._CONNECT_SECONDS, amazon._READ_SECONDS, web._TIMEOUT_SECONDS, sftp._CONNECT_SECONDS)
    assert retry.TRIES * longest + pauses < 70


@pytest.mark.parametrize("kind", ["s3", "http", "sftp"])
@pytest.mark.parametrize("doing", ["read", "list", "write"])
@pytest.mark.usefixtures("short_limits")
@pytest.mark.timeout(300)
def test_a_silent_server_is_told_of(silent: int, kind: str, doing: str) -> None:
    if kind == "sftp":
        pytest.importorskip("paramiko", reason="needs the extra sftp")
    if (kind, doing) == ("http", "write"):
        pytest.skip("it can only be read")
    remote = remote_at(kind, silent)
    began = time.monotonic()
    with pytest.raises(RemoteError, match=r"tried 5 times\): .*; see to the connection"):
        {
            "read": lambda: remote.read("a", 100),
            "list": lambda: remote.files_in(""),
            "write": lambda: remote.write("a", b"data"),
        }[doing]()
    # Five times as long as users wait for one answer would be fifty seconds.
    assert time.monotonic() - began < 40


@pytest.mark.usefixtures("short_limits")
def test_nothing_but_plain_words_comes_to_the_terminal(silent: int) -> None:
    pytest.importorskip("paramiko", reason="needs the extra sftp")
    program = (
        "from embedcache.share import retry\n"
        "from embedcache.share.places import sftp, open_place, parse_location\n"
        "retry.FIRST_PAUSE_SECONDS = retry.TOLD_AFTER_SECONDS = 0.0; sftp._BANNER_SECONDS = 0.3\n"
        f"place = open_place(parse_location('sftp://ann@127.0.0.1:{silent}/x'))\n"
        "try: retry.retrying('list files', place.where, lambda: place.list(''))\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=True
    )
    assert "tried 5 times" in done.stdout
    lines = done.stderr.splitlines()
    assert lines, "nobody was told"
    assert all(line.startswith("still waiting for sftp://ann@127.0.0.1:") for line in lines)


# What is slow and alive


@contextmanager
def dripping(
    pause: float, silent: threading.Event | None = None, unanswered: list[str] | None = None
) -> Iterator[int]:
    """Serve ``SENT`` as any object of S3 and the web, ten bytes at a time with pauses; yield the port.

    Once ``silent`` is set, nothing is answered any more, and requests are noted in ``unanswered``.
    """
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._begin(200, SENT)

        def do_PUT(self) -> None:
            self._begin(200, b"")

        def do_GET(self) -> None:
            span = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            data = SENT[int(span[1]) : int(span[2]) + 1] if span else SENT
            self._begin(206 if span else 200, data)
            for start in range(0, len(data), 10):
                time.sleep(pause)
                self.wfile.write(data[start : start + 10])
                self.wfile.flush()

        def _begin(self, status: int, data: bytes) -> None:
            if silent is not None and silent.is_set():
                if unanswered is not None:
                    unanswered.append(self.command)
                ended.wait()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server.server_port
        ended.set()
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("doing", ["read", "write"])
@pytest.mark.usefixtures("short_limits")
def test_a_bucket_that_falls_silent_is_waited_for_longer_once_alone(
    doing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(amazon, "_WRITE_SECONDS", 2.0)
    silent, unanswered = threading.Event(), list[str]()
    with dripping(0.0, silent, unanswered) as port:
        remote = remote_at("s3", port)
        assert remote.read("a", 1000) == SENT
        silent.set()
        with pytest.raises(RemoteError, match="tried 5 times"):
            remote.read("a", 1000) if doing == "read" else remote.write("a", b"data")
        # The first of five tries makes three requests, and the others make one.
        assert len(unanswered) <= 3 + 4


@pytest.mark.parametrize("kind", ["s3", "http"])
def test_a_slow_transfer_is_never_cut(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amazon, "_READ_SECONDS", 4.0)
    monkeypatch.setattr(web, "_TIMEOUT_SECONDS", 4.0)
    with dripping(0.5) as port:
        place = remote_at(kind, port).place
        # Five seconds in all: longer than a silent server is waited for, though no pause comes near that.
        assert b"".join(place.blocks("a", 1 << 20)) == SENT
        assert place.read_range("a", 20, 60) == SENT[20:80]


# What is said meanwhile


class Failing:
    """Fails with an error until it has been called ``failures`` times."""

    def __init__(self, failures: int, error: OSError) -> None:
        self.left, self.error = failures, error

    def __call__(self) -> str:
        if self.left:
            self.left -= 1
            raise self.error
        return "done"


def test_a_long_wait_is_told_of_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(retry, "TOLD_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(retry, "_waits", retry._Waits())
    with caplog.at_level(logging.WARNING, "embedcache"):
        act = Failing(3, ConnectionResetError("x" * 500))
        assert retrying("read a", "s3://bucket", act) == "done"
        assert retrying("read a", "s3://other", Failing(1, OSError("gone"))) == "done"
    assert [record.getMessage() for record in caplog.records] == [
        f"still waiting for s3://bucket: try 2 of 5 to read a ({'x' * 100} …)",
        "still waiting for s3://other: try 2 of 5 to read a (gone)",
    ]


def test_what_soon_goes_on_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "embedcache"):
        assert retrying("read a", "s3://soon", Failing(3, OSError("gone"))) == "done"
    assert not caplog.records


def test_a_long_pause_is_told_of_before_it_begins(caplog: pytest.LogCaptureFixture) -> None:
    class StopsDuringAPause(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            self.set()
            return True

    stop = StopsDuringAPause()
    with caplog.at_level(logging.WARNING, "embedcache"), pytest.raises(RemoteError):
        retrying("read a", "hf://later", Failing(9, LaterError("HTTP status 429", "wait", 60)), stop)
    assert len(caplog.records) == 1


# Blocks


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Make time stand still; return what lets it pass."""
    now = 0.0

    def advance(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(base.time, "monotonic", lambda: now)
    return advance


@pytest.mark.parametrize(
    ("rate", "sizes"),
    [
        # Bytes a second, and what is asked for in 1/4 MiB.
        (1 << 30, [4, 8, 16, 32, 32]),
        (1 << 20, [4, 4, 4, 4, 4]),
        (1 << 17, [4, 2, 1, 1, 1]),
    ],
)
def test_blocks_suit_the_speed(clock: Callable[[float], None], rate: int, sizes: list[int]) -> None:
    asked = []

    def read(size: int) -> bytes:
        asked.append(size)
        clock(size / rate)
        return b"x" if len(asked) <= len(sizes) else b""

    assert len(list(growing_blocks(read, 8 << 20))) == len(sizes)
    assert [size >> 18 for size in asked[: len(sizes)]] == sizes


def test_no_block_is_larger_than_asked_for(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(os.urandom(5_000_000))
    place = open_place(parse_location(str(tmp_path)))
    blocks = [len(block) for block in place.blocks("a", 3 << 20)]
    assert blocks[:2] == [1 << 20, 2 << 20]
    assert sum(blocks) == 5_000_000
    assert [len(block) for block in place.blocks("a", 1_000_000)] == [1_000_000] * 5
