"""A folder of a machine that is reached over ssh."""

from __future__ import annotations

import getpass
import logging
import stat as modes
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from embedcache.errors import MissingExtraError
from embedcache.fsio import TEMPORARY_PREFIX
from embedcache.share.places.base import Data, Stat, final_name, growing_blocks
from embedcache.share.retry import RefusedError

if TYPE_CHECKING:
    import paramiko

# A silent server is asked five times. All of that is to take about a minute.
_BANNER_SECONDS = 10
# Longer than the other, or the error would not say what was waited for.
_CONNECT_SECONDS = 11
# A server that has answered may take longer: to log somebody in, or to read from a slow disk.
_ANSWER_SECONDS = 30
_AHEAD = 64
# Servers refuse more than a few connections at once.
_CONNECTIONS = 4
_CHUNK_BYTES = 1 << 20
_PORT = 22


class SftpPlace:
    """The folder ``path`` on ``host``, over a few connections, which threads use in turn.

    User, port and key come from ``~/.ssh/config``, the agent and the usual key files; a host that is not in
    ``known_hosts`` is refused.
    """

    read_only = False

    def __init__(self, where: str, host: str, path: str, user: str | None, port: int | None) -> None:
        self._where, self._host, self._base = where, host, PurePosixPath(path or "/")
        self._user, self._port = user, port
        self._free = threading.BoundedSemaphore(_CONNECTIONS)
        self._idle: list[paramiko.SFTPClient] = []

    @property
    def where(self) -> str:
        """The URL."""
        return self._where

    def list(self, folder: str) -> dict[str, Stat]:
        """Return the regular files in ``folder``; temporary ones are left out."""
        return self._files(folder, lambda name: not name.startswith(TEMPORARY_PREFIX))

    def below(self, folder: str) -> None:
        """Return None: folders are listed one by one."""

    def temporary(self, folder: str) -> dict[str, Stat]:
        """Return the regular files in ``folder`` that have the name of a temporary file."""
        return self._files(folder, lambda name: bool(final_name(name)))

    def stat(self, path: str) -> Stat | None:
        """Return size and time of a regular file."""
        with self._connected() as sftp:
            try:
                entry = sftp.lstat(self._path(path))
            except FileNotFoundError:
                return None
        return Stat(entry.st_size, entry.st_mtime) if modes.S_ISREG(entry.st_mode or 0) else None

    def blocks(self, path: str, size: int) -> Iterator[memoryview]:
        """Yield the bytes of a file, requested ahead of their arrival."""
        with self._connected() as sftp, sftp.open(self._path(path), "rb") as source:
            source.prefetch(max_concurrent_requests=_AHEAD)
            yield from growing_blocks(source.read, size)

    def read_range(self, path: str, start: int, length: int) -> bytes:
        """Return a part of a file, whose pieces are requested before the first has arrived."""
        with self._connected() as sftp, sftp.open(self._path(path), "rb") as source:
            within = max(0, min(length, (source.stat().st_size or 0) - start))
            return b"".join(source.readv([(start, within)])) if within else b""

    def write(self, path: str, data: Data) -> None:
        """Write a file by way of a temporary one, which is renamed."""
        target = self._base / path
        temporary = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{target.name}")
        with self._connected() as sftp:
            try:
                with _made(sftp, temporary) as sink:
                    sink.set_pipelined(True)
                    whole = memoryview(data)
                    for start in range(0, len(whole), _CHUNK_BYTES):
                        sink.write(bytes(whole[start : start + _CHUNK_BYTES]))
                sftp.posix_rename(str(temporary), str(target))
            except BaseException as error:
                with suppress(OSError):
                    sftp.remove(str(temporary))
                if isinstance(error, PermissionError):
                    raise RefusedError(
                        f"nothing may be written to {target.parent} ({error.strerror})",
                        "ask whoever runs the server for the permission, or give another remote",
                    ) from error
                raise

    def remove(self, path: str) -> None:
        """Delete a file."""
        with self._connected() as sftp, suppress(FileNotFoundError):
            sftp.remove(self._path(path))

    def _files(self, folder: str, is_meant: Callable[[str], bool]) -> dict[str, Stat]:
        with self._connected() as sftp:
            try:
                entries = sftp.listdir_attr(self._path(folder))
            except FileNotFoundError:
                return {}
        return {
            entry.filename: Stat(entry.st_size, entry.st_mtime)
            for entry in entries
            if modes.S_ISREG(entry.st_mode or 0) and is_meant(entry.filename)
        }

    def _path(self, path: str) -> str:
        return str(self._base / path)

    @contextmanager
    def _connected(self) -> Iterator[paramiko.SFTPClient]:
        """Yield a connection that nobody else uses; one that broke is not used again."""
        with self._free:
            try:
                sftp = self._idle.pop()
            except IndexError:
                with self._explained():
                    sftp = self._connect()
            try:
                with self._explained():
                    yield sftp
            except FileNotFoundError:
                self._idle.append(sftp)
                raise
            except BaseException:
                # Requests that are still under way on it are not waited for.
                _close(sftp)
                raise
            self._idle.append(sftp)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn paramiko's errors of a connection into ``OSError``."""
        paramiko = _library()
        try:
            yield
        except (EOFError, paramiko.SSHException) as error:
            raise OSError(
                f"the connection to {self._host} failed: {error or type(error).__name__}"
            ) from error

    def _connect(self) -> paramiko.SFTPClient:
        paramiko = _library()
        settings = _ssh_config(self._host)
        client = paramiko.SSHClient()
        client.load_system_host_keys()
        client.set_missing_host_key_policy(paramiko.RejectPolicy())
        named = settings.get("identityfile")
        # The settings may name keys that this machine does not have.
        keys = [key for key in named if Path(key).is_file()] if isinstance(named, list) else []
        user = self._user or str(settings.get("user", getpass.getuser()))
        host = str(settings.get("hostname", self._host))
        port = self._port or int(str(settings.get("port", _PORT)))
        try:
            client.connect(
                host,
                port=port,
                username=user,
                key_filename=keys or None,
                timeout=_CONNECT_SECONDS,
                banner_timeout=_BANNER_SECONDS,
                auth_timeout=_ANSWER_SECONDS,
                channel_timeout=_ANSWER_SECONDS,
            )
            # Not the client's own method, which waits without end for a server that falls silent here.
            channel = client.get_transport().open_session()
            channel.settimeout(_ANSWER_SECONDS)
            channel.invoke_subsystem("sftp")
            sftp = paramiko.SFTPClient(channel)
        except BaseException as error:
            refused = _host_refused(host, port, user, error)
            if refused is None and _refuses_login(client, error):
                refused = _login_refused(f"{user}@{self._host}", keys, error)
            client.close()
            if refused is not None:
                raise refused from error
            raise
        # A client that is garbage-collected closes its connection.
        sftp.client = client
        return sftp


def _host_refused(host: str, port: int, user: str, error: BaseException) -> RefusedError | None:
    """Return the error of a server whose key is not known, or another than it was; None of other errors."""
    paramiko = _library()
    is_usual = port == _PORT
    option = "" if is_usual else f"-p {port} "
    login = f"ssh {option}{user}@{host}"
    if isinstance(error, paramiko.BadHostKeyException):
        return RefusedError(
            f"{host} has another key than the one in known_hosts: it was set up anew, or another machine "
            "stands in its place",
            f"ask whoever runs it; if the new key is right, forget the old one with 'ssh-keygen -R "
            f"{host if is_usual else f'[{host}]:{port}'}' and accept the new one with '{login}'",
        )
    if isinstance(error, paramiko.SSHException) and "known_hosts" in str(error):
        return RefusedError(
            f"known_hosts has no key of {host}, so nothing tells it from another machine",
            f"compare the key that '{login}' shows with the machine's and accept it there, once; or add it "
            f"with 'ssh-keyscan {option}{host} >> ~/.ssh/known_hosts'",
        )
    return None


def _refuses_login(client: paramiko.SSHClient, error: BaseException) -> bool:
    """Return whether a connection failed because the login was refused, which trying again does not help."""
    paramiko = _library()
    transport = client.get_transport()
    # A connection that broke is not active. The key of the server arrives before the login.
    is_at_login = (
        transport is not None
        and transport.is_active()
        and transport.host_key is not None
        and not transport.is_authenticated()
    )
    return is_at_login and isinstance(error, paramiko.SSHException) and "timeout" not in str(error)


def _login_refused(who: str, keys: Sequence[str], error: BaseException) -> RefusedError:
    """Return the error of a login that was refused; it names the key that is locked, if one is."""
    usual = [Path("~/.ssh", f"id_{kind}").expanduser() for kind in ("rsa", "ecdsa", "ed25519")]
    locked = [str(key) for key in dict.fromkeys([*map(Path, keys), *usual]) if _is_locked(key)]
    if locked:
        return RefusedError(
            f"{who} could not log in: a passphrase locks the key {locked[0]}",
            f"add the key to the ssh agent with 'ssh-add {locked[0]}', and run the same command again",
        )
    return RefusedError(
        f"{who} could not log in: {error}",
        "see to the credentials: the name of the user, and the keys of the ssh agent and of ~/.ssh",
    )


def _is_locked(key: Path) -> bool:
    paramiko = _library()
    if not key.is_file():
        return False
    for kind in (paramiko.RSAKey, paramiko.ECDSAKey, paramiko.Ed25519Key):
        try:
            kind.from_private_key_file(str(key))
        except paramiko.PasswordRequiredException:
            return True
        except (OSError, ValueError, paramiko.SSHException):
            continue
        return False
    return False


def _close(sftp: paramiko.SFTPClient) -> None:
    with suppress(Exception):
        sftp.client.close()


def _made(sftp: paramiko.SFTPClient, path: PurePosixPath) -> paramiko.SFTPFile:
    """Open a new file for writing, and make the folders above it where they are missing."""
    try:
        return sftp.open(str(path), "wbx")
    except FileNotFoundError:
        for folder in reversed(path.parents):
            # Other processes may make the same folders at the same moment.
            with suppress(OSError):
                sftp.mkdir(str(folder))
        try:
            return sftp.open(str(path), "wbx")
        except FileNotFoundError as error:
            raise RefusedError(
                f"the server has no folder {path.parent}, and it cannot be made",
                "see to the path, which begins at the root of the server, and to who may write there, or "
                "give another folder",
            ) from error


def _ssh_config(host: str) -> dict[str, object]:
    path = Path("~/.ssh/config").expanduser()
    if not path.is_file():
        return {}
    return dict(_library().SSHConfig.from_path(str(path)).lookup(host))


def _library() -> Any:
    """Return paramiko, or say how to install it."""
    try:
        import paramiko
    except ImportError as error:
        raise MissingExtraError("sftp:// needs paramiko: pip install 'embedcache[sftp]'") from error
    # It logs tracebacks of broken connections, which Python would write to standard error. Whoever has
    # configured logging still gets them.
    logger = logging.getLogger("paramiko.transport")
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    return paramiko
