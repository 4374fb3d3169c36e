"""Servers for remotes on the loopback device: S3, SFTP, Google's, Azure's, the web; and a bad line."""

from __future__ import annotations

import base64
import functools
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ports import reserved_port, wait_until_listening

BUCKET = "team"
KEY, SECRET = "loopback-key", base64.b64encode(b"loopback-secret").decode()
AZURE_ACCOUNT = "loopback"
_REQUEST = re.compile(rb"((?:GET|PUT|POST|DELETE|HEAD|PATCH) \S+) HTTP/1\.1\r\n")
# It ends between two requests, lest it lose its list of objects; more than five wait, lest they be slow.
_GCS_PROGRAM = """
import http.server, signal, sys
from gcp_storage_emulator.__main__ import main
http.server.HTTPServer.request_queue_size = 128
signal.signal(signal.SIGTERM, signal.default_int_handler)
main(sys.argv[1:])
"""
# A server that the holders of some keys may log in to, for all paths.
_SFTP_PROGRAM = """
import asyncio, asyncssh, sys
port, host_key, authorized = sys.argv[1:]

async def serve():
    settings = {"server_host_keys": [host_key], "authorized_client_keys": authorized}
    async with asyncssh.listen("127.0.0.1", int(port), sftp_factory=True, **settings):
        await asyncio.Event().wait()

asyncio.run(serve())
"""


def rclone() -> str | None:
    """Return the program, or None where it is not installed."""
    return shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")


def azurite() -> str | None:
    """Return the program: on the path, or where ``AZURITE_FOLDER`` says that npm has installed it."""
    beside = Path(os.environ.get("AZURITE_FOLDER", "."), "node_modules", ".bin")
    found = shutil.which("azurite-blob", path=str(beside)) or shutil.which("azurite-blob")
    return found if shutil.which("node") else None


@contextmanager
def _running(command: Sequence[str | Path], port: int, log: Path, **settings: str) -> Iterator[None]:
    with log.open("ab") as sink:
        server = subprocess.Popen(command, stdout=sink, stderr=sink, env={**os.environ, **settings})
        try:
            wait_until_listening(port, server)
            yield
        finally:
            server.terminate()
            server.wait(60)


@contextmanager
def s3_server(folder: Path) -> Iterator[int]:
    """Serve ``folder`` over S3, each folder in it a bucket, and lists kept for a second; yield the port."""
    program = rclone()
    if program is None:
        pytest.skip("rclone is not installed")
    (folder / BUCKET).mkdir(parents=True, exist_ok=True)
    with reserved_port() as port:
        command = [program, "serve", "s3", str(folder), "--addr", f"127.0.0.1:{port}"]
        # With 0 it hangs when many write at once.
        command += ["--auth-key", f"{KEY},{SECRET}", "--dir-cache-time", "1s"]
        with _running(command, port, folder.with_name(f"{folder.name}.log"), RCLONE_CONFIG=os.devnull):
            yield port


def s3_environment(port: int) -> dict[str, str]:
    """Return what a process needs to know of the server; nothing of it is in a URL."""
    return {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


@contextmanager
def sftp_server(folder: Path) -> Iterator[tuple[int, Path]]:
    """Run an SFTP server for all paths; yield its port and the home of a user who may log in."""
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    for key in (folder / "host", home / ".ssh" / "id_ed25519"):
        make_key(key)
    authorized = home / ".ssh" / "id_ed25519.pub"
    with reserved_port() as port:
        trust(home, folder / "host", port)
        command = [sys.executable, "-c", _SFTP_PROGRAM, str(port), str(folder / "host"), str(authorized)]
        with _running(command, port, folder / "log"):
            yield port, home


def make_key(path: Path) -> None:
    """Make a key and, beside it, its public half."""
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519")
    key.write_private_key(path)
    key.write_public_key(f"{path}.pub")


def trust(home: Path, key: Path, port: int) -> None:
    """Let the user whose home it is know ``key`` as the one of the server on ``port``, and no other."""
    words = key.with_name(f"{key.name}.pub").read_text().split()[:2]
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {' '.join(words)}\n")


@contextmanager
def gcs_server(folder: Path) -> Iterator[int]:
    """Run the emulator of Google's storage, which keeps its data in ``folder``; yield the port."""
    folder.mkdir(parents=True, exist_ok=True)
    with reserved_port() as port:
        command = [sys.executable, "-c", _GCS_PROGRAM, "--data-dir", str(folder), "start", "--quiet"]
        command += ["--host=127.0.0.1", f"--port={port}", f"--default-bucket={BUCKET}"]
        with _running(command, port, folder.with_name(f"{folder.name}.log")):
            yield port


def gcs_environment(port: int) -> dict[str, str]:
    """Return what a process needs to know of the server."""
    return {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{port}"}


@contextmanager
def azure_server(folder: Path) -> Iterator[int]:
    """Run the emulator of Azure's storage, which keeps its data in ``folder``; yield the port."""
    program = azurite()
    if program is None:
        pytest.skip("azurite is not installed (npm install azurite; AZURITE_FOLDER says where)")
    folder.mkdir(parents=True, exist_ok=True)
    with reserved_port() as port:
        command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
        command += ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        accounts = {"AZURITE_ACCOUNTS": f"{AZURE_ACCOUNT}:{SECRET}"}
        with _running(command, port, folder.with_name(f"{folder.name}.log"), **accounts):
            yield port


def azure_environment(port: int) -> dict[str, str]:
    """Return what a process needs to know of the server."""
    text = f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={SECRET};"
    where = f"BlobEndpoint=http://127.0.0.1:{port}/{AZURE_ACCOUNT};"
    return {"AZURE_STORAGE_CONNECTION_STRING": text + where}


class Quiet(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name it has there
        pass

    def copyfile(self, source: Any, outputfile: Any) -> None:
        with suppress(ConnectionError):
            super().copyfile(source, outputfile)


@contextmanager
def http_server(folder: Path, handler: type[Quiet] = Quiet) -> Iterator[str]:
    """Serve a folder, and lists of what is in its folders, over http; yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Proxy:
    """Hands bytes on between clients and a server, and loses some connections; close it when done."""

    target: int  # the port of the server
    port: int = 0  # where it listens
    drop: float = 0.0  # share of connections that are cut off after some bytes of the server's
    cut: int = 0  # connections cut off so far
    requests: list[str] = field(default_factory=list)  # of HTTP that have come so far: method and path

    def __post_init__(self) -> None:
        self._random = random.Random(3)  # noqa: S311 - nothing is secret here
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                # Small: before the answer; large: in the middle of a body.
                some = self._random.choice([200, 3000, 20_000, 200_000])
                limit = some if self._random.random() < self.drop else None
                threading.Thread(target=self._serve, args=(client, limit), daemon=True).start()

    def _serve(self, client: socket.socket, limit: int | None) -> None:
        with client, suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as server:
            threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
            self._pump(server, client, limit)

    def _pump(self, source: socket.socket, sink: socket.socket, limit: int | None) -> None:
        passed = 0
        with suppress(OSError):
            while block := source.recv(1 << 16):
                self.requests += [line.decode() for line in _REQUEST.findall(block)]
                if limit is not None and passed + len(block) > limit:
                    sink.sendall(block[: limit - passed])
                    self.cut += 1
                    break
                passed += len(block)
                sink.sendall(block)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
