"""A remote: a place for objects named by their digests, and for small files. Format: docs/remote-format.md.

Content is untrusted: every read has a size limit, and objects are checked against their digests.
"""

from __future__ import annotations

import hashlib
import threading
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from fsspec.callbacks import Callback
from fsspec.implementations.local import LocalFileSystem

from embedcache.cache_documents import REMOTE_MARKER
from embedcache.errors import EmbedCacheError, InputError, RemoteError
from embedcache.filesystems import (
    PAUSE,
    RETRIED,
    TRIES,
    Stat,
    open_filesystem,
    scheme_of,
    shortly,
    stat_of,
)
from embedcache.fsio import TEMPORARY_PREFIX, sha256_file, spelled_json, temporary_sibling
from embedcache.share.hub import CARD, DatasetRepository
from embedcache.share.location import url_of

READ_ONLY = ("http", "https")
RENAMING = ("file", "sftp")
"""Schemes whose files appear while they are written, so they are written aside and renamed."""
JOBS = 8
GRACE = 14 * 86_400.0
"""Seconds that an object no manifest lists is kept."""
_MARKER = spelled_json({"version": 2})
_RAISED = object()

_T = TypeVar("_T")
_Item = TypeVar("_Item")


class DamagedError(RemoteError):
    """File of a remote that is missing, larger than allowed, or has another digest than its name."""


class Remote:
    """Remote at ``remote``, a name or a URL.

    Args:
        remote: name or URL.
        to_write: True if files will be written or deleted.

    Raises:
        InputError: if the name or the URL cannot be used, or it is read-only and ``to_write`` is set.
        MissingExtraError: if a package is missing for its kind.
        RemoteError: if it cannot be connected to.
    """

    def __init__(self, remote: str, *, to_write: bool = False) -> None:
        self.url = url_of(remote)
        self.scheme = scheme_of(self.url)
        self.id = hashlib.sha256(self.url.encode()).hexdigest()[:32]
        self.stop = threading.Event()
        """Set to end transfers in other threads."""
        if to_write and self.scheme in READ_ONLY:
            raise InputError(f"{self.url}: {self.scheme}:// remotes are read-only.")
        self.hub = DatasetRepository(self.url) if to_write and self.scheme == "hf" else None
        self._connecting = threading.Lock()
        self._fs, self._root = open_filesystem(self.url)

    def open(self) -> Remote:
        """Read the marker and return this remote.

        Raises:
            RemoteError: if it cannot be reached, is not a remote, or has another version.
        """
        data = self.read(REMOTE_MARKER, 4096)
        if data is None:
            raise RemoteError(f"{self.url}: no remote there. 'embedcache push' to it makes one.")
        return self._of_this_version(data)

    def create(self) -> Remote:
        """Return this remote; write its marker if the place is empty.

        Raises:
            InputError: if it holds other things.
            RemoteError: as ``open``.
        """
        if (hub := self.hub) is not None:
            self._call("make", "", lambda fs, place: hub.create())
        # Read once: several may make a remote at once, and some servers hide a file while it is replaced.
        data = self.read(REMOTE_MARKER, 4096)
        if data is not None:
            return self._of_this_version(data)
        mine = () if self.hub is None else (CARD,)
        others = sorted(name for name in self.names_in("") if not name.startswith(".") and name not in mine)
        if others and REMOTE_MARKER not in others:
            raise InputError(
                f"{self.url}: no remote, and not empty ({', '.join(others[:3])}). Give an empty or new "
                "folder."
            )
        self.write(REMOTE_MARKER, _MARKER)
        return self

    def _of_this_version(self, data: bytes) -> Remote:
        if data != _MARKER:
            raise RemoteError(
                f"{self.url}: a remote of another version than 2. Upgrade embedcache, or push again to a new "
                "folder."
            )
        return self

    def refuse_nested(self, folder: Path) -> None:
        """Raise ``InputError`` where a folder remote contains a cache or lies in it."""
        if self.scheme == "file":
            mine, other = Path(self.url).resolve(), folder.resolve()
            if mine == other or mine in other.parents or other in mine.parents:
                raise InputError(
                    f"{mine}: a remote and a cache cannot contain each other. Give another folder."
                )

    # Names and bytes

    def names_in(self, folder: str) -> list[str]:
        """Return the names of the files and folders directly in a folder; none where it is missing."""
        found = self._call("list", folder, lambda fs, place: fs.ls(place, detail=False), missing=[])
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def find(self, folder: str) -> dict[str, Stat]:
        """Return all files below a folder: path on the remote -> size and time."""
        found = self._call("list", folder, lambda fs, place: fs.find(place, detail=True), missing={})
        start = len(self._fs._strip_protocol(self._root)) + 1
        return {str(path)[start:]: stat_of(info) for path, info in found.items()}

    def stat(self, path: str) -> Stat | None:
        """Return size and time of a file; None where it is missing."""
        info = self._call("look for", path, lambda fs, place: fs.info(place), missing=None)
        return None if info is None else stat_of(info)

    def read(self, path: str, most: int) -> bytes | None:
        """Return the content of a small file; None where it is missing.

        Raises:
            RemoteError: if it cannot be read, or has more than ``most`` bytes.
        """
        with TemporaryDirectory(prefix="embedcache-") as folder:
            target = Path(folder) / "file"
            return target.read_bytes() if self._download(path, target, most) else None

    def write(self, path: str, data: bytes) -> None:
        """Write a file so that it appears whole; one of the same name is replaced."""
        self._write(path, data)
        self.flush()

    def put(self, sha256: str, data: bytes) -> None:
        """Send an object; ``flush`` makes it visible.

        Raises:
            RemoteError: if it cannot be written.
            InputError: if ``data`` has another digest than ``sha256``.
        """
        if hashlib.sha256(data).hexdigest() != sha256:
            raise InputError(
                f"a file of the cache is no longer {sha256[:12]}: run 'embedcache verify', then push again."
            )
        self._write(object_path(sha256), data)

    def flush(self) -> None:
        """Make the objects that were put visible, where the remote does not do so at once."""
        if (hub := self.hub) is not None:
            self._call("commit to", "", lambda fs, place: hub.commit())

    def _write(self, path: str, data: bytes) -> None:
        def send(fs: Any, place: str) -> None:
            if self.hub is not None:
                self.hub.add(place, data)
            else:
                upload(place, data, fs, aside=self.scheme in RENAMING)

        self._call("write", path, send)

    def delete(self, path: str) -> None:
        """Delete a file; harmless where it is missing."""
        self._call("delete", path, lambda fs, place: fs.rm_file(place), missing=None)

    def fetch(
        self, sha256: str, size: int, target: Path, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Download an object; ``target`` appears when it is whole and checked.

        Raises:
            DamagedError, RemoteError: if it is missing or has other bytes, or cannot be read.
            StorageError: if ``target`` cannot be written.
        """
        with temporary_sibling(target) as temporary:
            if not self._download(object_path(sha256), temporary, size, on_bytes):
                raise DamagedError(f"{self.url}: object {sha256[:12]} is missing.")
            if sha256_file(temporary) != sha256:
                raise DamagedError(f"{self.url}: object {sha256[:12]} is damaged.")
            temporary.replace(target)

    def _download(
        self, path: str, target: Path, most: int, on_bytes: Callable[[int], None] | None = None
    ) -> bool:
        """Write a file of at most ``most`` bytes to ``target``; return False where it is missing."""

        def bring(fs: Any, place: str) -> bool:
            limit = Limit(f"{self.url}: {path}", most, self.stop, on_bytes)
            return download(place, target, limit, fs)

        return bool(self._call("read", path, bring, missing=False))

    def _call(self, what: str, path: str, act: Callable[[Any, str], Any], *, missing: Any = _RAISED) -> Any:
        """Call a function, and turn errors of the client into ``RemoteError``.

        Where the client does not try again, this does, over a new connection.

        Args:
            what: a verb for the message.
            path: file or folder of the remote.
            act: the function; takes the filesystem and the place of ``path`` in it.
            missing: the result for a missing file, which is an error without it.
        """
        tries = TRIES if self.scheme in RETRIED else 1
        while True:
            # The hub's client remembers what was there, and that something was not.
            fs = self._fs if self.hub is None else open_filesystem(self.url)[0]
            tries -= 1
            try:
                return act(fs, f"{self._root}/{path}".rstrip("/"))
            except EmbedCacheError:
                raise
            except Exception as error:
                is_missing = isinstance(error, FileNotFoundError)
                if is_missing and missing is not _RAISED:
                    return missing
                if is_missing or not tries or self.stop.wait(PAUSE):
                    why = f"cannot {what} {path or 'it'} ({shortly(error)})"
                    raise RemoteError(f"{self.url}: {why}.") from error
            # Threads whose calls failed together share one new connection.
            with self._connecting, suppress(RemoteError):
                if self._fs is fs:
                    self._fs, _ = open_filesystem(self.url)

    def in_threads(self, act: Callable[[_Item], _T], items: Iterable[_Item]) -> list[_T]:
        """Return the results of ``act`` for each item, run in parallel; the first error ends the rest."""
        with ThreadPoolExecutor(JOBS, thread_name_prefix="remote") as pool:
            futures = [pool.submit(act, item) for item in items]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                self.stop.set()
                pool.shutdown(cancel_futures=True)
                self.stop.clear()
                raise
        return [future.result() for future in futures]


def object_path(sha256: str) -> str:
    """Return the path of an object on a remote."""
    return f"objects/{sha256[:2]}/{sha256}"


class Limit(Callback):  # type: ignore[misc]
    """Byte counter of a download, which ends it if it is too large or stopped.

    Args:
        what: names the file in errors.
        most: bytes that it may have.
        stop: ends the download when it is set.
        on_bytes: called with the number of bytes of each block.
    """

    def __init__(
        self, what: str, most: int, stop: threading.Event, on_bytes: Callable[[int], None] | None
    ) -> None:
        super().__init__()
        self._what, self._most, self._stop, self._on_bytes = what, most, stop, on_bytes
        self._counted = 0

    def call(self, hook_name: str | None = None, **kwargs: Any) -> None:
        """Check the count; fsspec calls this for every block."""
        if self._stop.is_set():
            raise RemoteError(f"{self._what}: stopped.")
        if self.value > self._most:
            raise DamagedError(f"{self._what} has more than {self._most:,} bytes.")
        if self._on_bytes is not None:
            self._on_bytes(self.value - self._counted)
        self._counted = self.value


def download(place: str, target: Path, limit: Limit, fs: Any) -> bool:
    """Write a file of a filesystem to ``target``; return True."""
    if isinstance(fs, LocalFileSystem):  # copies without calling back
        limit.absolute_update(fs.info(place)["size"])
    fs.get_file(place, str(target), callback=limit)
    # Folders are skipped silently: this raises FileNotFoundError then.
    limit.absolute_update(target.stat().st_size)
    return True


def upload(place: str, data: bytes, fs: Any, *, aside: bool) -> None:
    """Write a file so that it appears whole; with ``aside``, write a temporary file and rename it."""
    if not aside:
        fs.pipe_file(place, data)
        return
    folder, _, name = place.rpartition("/")
    temporary = f"{folder}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{name}"
    fs.makedirs(folder, exist_ok=True)
    try:
        fs.pipe_file(temporary, data)
        fs.mv(temporary, place)
    except BaseException:
        with suppress(Exception):
            fs.rm_file(temporary)
        raise
