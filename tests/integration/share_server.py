"""A real S3 server on the loopback device, a proxy that drops connections, and caches to share."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from embedcache.share.rows.shard_index import index_bytes
from ports import reserved_port, wait_until_listening

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.errors import RemoteError
from embedcache.share import pull, push
from embedcache.testing import FakeEncoder, fake_teacher

BUCKET = "team"
KEY, SECRET = "loopback-key", "loopback-secret"
_REQUEST = re.compile(rb"((?:GET|PUT|POST|DELETE|HEAD) \S+) HTTP/1\.1\r\n")


def rclone() -> str | None:
    """Return the program, or None where it is not installed."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("rclone", path=beside) or shutil.which("rclone")


def environment(port: int) -> dict[str, str]:
    """Return what a process needs to know of the server; nothing of it is in a URL."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
    }


def point_to(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process find the server."""
    for name, value in environment(port).items():
        monkeypatch.setenv(name, value)


@contextmanager
def s3_server(folder: Path) -> Iterator[int]:
    """Serve ``folder`` over S3, each folder in it a bucket; yield the port."""
    (folder / BUCKET).mkdir(parents=True, exist_ok=True)
    program = rclone()
    assert program is not None
    log = folder.parent / f"server-{folder.name}.log"
    with reserved_port() as port, log.open("wb") as sink:
        command = [program, "serve", "s3", str(folder), "--addr", f"127.0.0.1:{port}"]
        command += ["--auth-key", f"{KEY},{SECRET}"]
        settings = {**os.environ, "RCLONE_CONFIG": os.devnull}
        server = subprocess.Popen(command, stdout=sink, stderr=sink, env=settings)
        try:
            wait_until_listening(port, server)
            yield port
        finally:
            server.terminate()
            server.wait(60)


@dataclass
class Proxy:
    """Hands bytes on between clients and a server, as badly as it is told to.

    Attributes:
        port: where it listens.
        drop: share of connections that are cut off after some bytes.
        upload: bytes a second that go to the server, over all connections; default: as many as come.
        download: the same for bytes that come from the server.
        held: until it is set, a connection stands still that has brought a megabyte for the server.
        cut: connections cut off so far.
        waiting: connections that have stood still so far.
        requests: of HTTP that have come so far: method and path.
    """

    target: int
    port: int = 0
    drop: float = 0.0
    upload: float | None = None
    download: float | None = None
    held: threading.Event | None = None
    cut: int = 0
    waiting: int = 0
    requests: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._random = np.random.default_rng(3)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._closed = False
        self._line = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._closed = True
        self._listener.close()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            limit = None
            if self._random.random() < self.drop:
                # Small: before the answer; large: in the middle of a body.
                limit = int(self._random.choice([200, 3000, 20_000, 200_000]))
            threading.Thread(target=self._serve, args=(client, limit), daemon=True).start()

    def _serve(self, client: socket.socket, limit: int | None) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as server:
            arguments = (client, server, None, self.upload, self.held)
            up = threading.Thread(target=self._pump, args=arguments, daemon=True)
            up.start()
            self._pump(server, client, limit, self.download)

    def _pump(
        self,
        source: socket.socket,
        sink: socket.socket,
        limit: int | None,
        rate: float | None,
        held: threading.Event | None = None,
    ) -> None:
        passed = 0
        with suppress(OSError):
            while block := source.recv(1 << 16):
                self.requests += [line.decode() for line in _REQUEST.findall(block)]
                if limit is not None and passed + len(block) > limit:
                    sink.sendall(block[: limit - passed])
                    self.cut += 1
                    break
                passed += len(block)
                if held is not None and passed > 1 << 20 and not held.is_set():
                    with self._line:
                        self.waiting += 1
                    held.wait()
                if rate is not None:
                    with self._line:
                        time.sleep(len(block) / rate)
                sink.sendall(block)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def make_cache(
    folder: Path, texts: Sequence[str], *, name: str, dimension: int = 8, shard_rows: int = 64
) -> Cache:
    """Build a cache of ``texts`` with the fake teacher."""
    source = folder.with_name(f"{folder.name}.txt")
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    teacher = fake_teacher(dimension)
    return build(
        source,
        teacher=teacher,
        encoder=FakeEncoder(teacher),  # type: ignore[arg-type]  # a fake one does as well
        cache=folder,
        name=name,
        shard_rows=shard_rows,
    )


def content(cache: Path) -> dict[str, str]:
    """Return what a cache holds: path -> sha256, without what is derived and what kills left behind."""
    found = {}
    for path in sorted(cache.rglob("*")):
        inside = path.relative_to(cache).as_posix()
        if path.is_file() and not inside.startswith("derived/") and "/.tmp-" not in f"/{inside}":
            found[inside] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def objects_of(cache: Path) -> set[str]:
    """Return the digests of all objects that a push of a cache puts on a remote."""
    files = content(cache)
    files.pop("cache.json")
    indexes = set()
    for path in cache.glob("teachers/*/shards/*.arrow"):
        data = index_bytes(pa.py_buffer(path.read_bytes()), path.stem)
        indexes.add(hashlib.sha256(data).hexdigest())
    return {*files.values(), *indexes}


def assert_objects_right(bucket: Path) -> int:
    """Assert that every object that can be seen has the digest it is called by; return how many there are."""
    count = 0
    for path in bucket.glob("**/objects/??/*"):
        # The server's own temporary files have other names.
        if len(path.name) == 64:
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
            count += 1
    return count


def again(act: Callable[[], object]) -> None:
    """Run a command until it ends well, as whoever reads its errors would."""
    for _ in range(20):
        with suppress(RemoteError):
            act()
            return
    pytest.fail("it never came to an end")


def assert_drops_do_no_harm(cache: Cache, remote: str, folder: Path, scratch: Path, proxy: Proxy) -> None:
    """Push a cache through a proxy that drops connections, and pull until that has been put to the test.

    Args:
        cache: the cache.
        remote: where to, by way of the proxy.
        folder: where that lies.
        scratch: where to pull to.
        proxy: the proxy, which is closed.
    """
    try:
        again(lambda: push(cache, remote))
        assert_objects_right(folder)
        # Connections are used again and again, so one round may see few that drop.
        for number in range(20):
            there = scratch / f"there-{number}"
            again(functools.partial(pull, there, remote))
            assert content(there) == content(cache.folder)
            if proxy.cut > 3:
                break
    finally:
        proxy.close()
    assert proxy.cut > 3
