"""Ports for servers that tests start, reserved until the server listens."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def reserved_port() -> Iterator[int]:
    """Yield a port for a server, which no other process is given while the block runs.

    A socket stays bound to it and does not listen. On Linux a server that reuses addresses, as nearly all do,
    can listen there all the same; elsewhere the port is free, and another process may be faster.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = int(held.getsockname()[1])
        if sys.platform != "linux":
            held.close()
        yield port


def wait_until_listening(port: int, server: subprocess.Popen[bytes], seconds: float = 120.0) -> None:
    """Wait until a server that was started accepts connections.

    Args:
        port: port to listen on.
        server: its process, which must not end meanwhile.
        seconds: longest wait.
    """
    deadline = time.monotonic() + seconds
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        assert server.poll() is None, f"the server has ended with {server.returncode}"
        assert time.monotonic() < deadline, f"nothing listens on port {port} after {seconds:.0f} s"
        time.sleep(0.05)
