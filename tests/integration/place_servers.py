"""Servers on the loopback device that remotes lie on: OpenSSH's, an emulator of Google's, one for the web."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ports import reserved_port, wait_until_listening
from share_server import BUCKET, rclone

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
# It ends between two requests: in the midst of one it could lose its own list of objects. And it lets more
# than five wait, for others are heard a second later.
_PROGRAM = """
import http.server, signal, sys
from gcp_storage_emulator.__main__ import main
http.server.HTTPServer.request_queue_size = 128
signal.signal(signal.SIGTERM, signal.default_int_handler)
main(sys.argv[1:])
"""


@contextmanager
def ssh_server(folder: Path, *, read_only: bool = False) -> Iterator[tuple[int, Path]]:
    """Run a server of this user's own; yield its port and the home of a user who may log in."""
    assert SSHD is not None
    home = folder / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    for key in (folder / "host", home / ".ssh" / "id_ed25519"):
        make_key(key)
    shutil.copy(home / ".ssh" / "id_ed25519.pub", folder / "authorized")
    words = (folder / "host.pub").read_text().split()[:2]
    (folder / "config").write_text(
        f"ListenAddress 127.0.0.1\nHostKey {folder / 'host'}\nPidFile none\nStrictModes no\n"
        f"AuthorizedKeysFile {folder / 'authorized'}\nPasswordAuthentication no\nUsePAM no\n"
        f"Subsystem sftp internal-sftp{' -R' if read_only else ''}\nMaxStartups 100\n"
    )
    if os.getuid() == 0:
        # Where the server, run by root, gives its rights up.
        Path("/run/sshd").mkdir(exist_ok=True)
    with reserved_port() as port, (folder / "log").open("wb") as log:
        (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {' '.join(words)}\n")
        child = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "config"), "-p", str(port)], stderr=log
        )
        try:
            wait_until_listening(port, child)
            yield port, home
        finally:
            child.terminate()
            child.wait(60)


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> None:
    command = ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-f", str(path)]
    subprocess.run(command, check=True)


def url_of(port: int, folder: Path) -> str:
    return f"sftp://{getpass.getuser()}@127.0.0.1:{port}{folder}"


class GoogleServer:
    """The emulator, which keeps its data in ``folder`` and can be ended and begun again on the same port."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._held = folder, ExitStack()
        self.port = self._held.enter_context(reserved_port())
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Begin; return once it listens."""
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-c",
            _PROGRAM,
            "--data-dir",
            str(self.folder),
            "start",
            "--quiet",
            "--host=127.0.0.1",
        ]
        command += [f"--port={self.port}", f"--default-bucket={BUCKET}"]
        self._child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until_listening(self.port, self._child)

    def stop(self) -> None:
        """End, and keep what has come."""
        assert self._child is not None
        self._child.terminate()
        self._child.wait(60)

    def close(self) -> None:
        """End, and give the port back."""
        self.stop()
        self._held.close()


@contextmanager
def web_server(folder: Path, *options: str) -> Iterator[str]:
    """Serve a folder over http; yield its URL."""
    program = rclone()
    assert program is not None
    settings = {**os.environ, "RCLONE_CONFIG": os.devnull}
    with reserved_port() as port:
        command = [program, "serve", "http", str(folder), "--addr", f"127.0.0.1:{port}"]
        command += ["--dir-cache-time", "0", *options]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=settings)
        try:
            wait_until_listening(port, child)
            yield f"http://127.0.0.1:{port}"
        finally:
            child.terminate()
            child.wait(60)
