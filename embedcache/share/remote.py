"""A remote: objects named by their digests, and the manifests that list them. Format: docs/remote-format.md.

Content is untrusted: every read has a size limit, and objects are checked against their digests.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from embedcache.cache import REMOTE_MARKER, Cache
from embedcache.errors import EmbedCacheError, InputError, RemoteError
from embedcache.fsio import make_directory, sha256_file, spelled_json, temporary_sibling
from embedcache.share.filesystem import (
    READ_ONLY,
    RENAMING,
    DamagedError,
    Limit,
    Stat,
    download,
    open_filesystem,
    shortly,
    stat_of,
    upload,
)
from embedcache.share.location import scheme_of, url_of
from embedcache.share.manifest import (
    MOST_MANIFEST_BYTES,
    Manifest,
    ManifestSet,
    digest_in,
    is_manifest_name,
    parse_manifest,
)

JOBS = 8
VERSION = 2
GRACE = 14 * 86_400.0
"""Seconds that an object no manifest lists is kept."""
MANIFESTS, DROPPED = "manifests", "dropped"
_MARKER = spelled_json({"version": VERSION})
_OBJECT = re.compile(r"objects/([0-9a-f]{2})/\1[0-9a-f]{62}")
_RAISED = object()

_T = TypeVar("_T")
_Item = TypeVar("_Item")


class Remote:
    """Remote at ``remote``, a name or a URL.

    Args:
        remote: name or URL.
        to_write: whether files will be written or deleted.

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
        self._fs, self._root = open_filesystem(self.url)

    def open(self) -> Remote:
        """Read the marker and return this remote.

        Raises:
            RemoteError: if it cannot be reached, is no remote, or has another version.
        """
        data = self.read(REMOTE_MARKER, 4096)
        if data is None:
            raise RemoteError(f"{self.url}: no remote there. 'embedcache push' to it makes one.")
        if data != _MARKER:
            raise RemoteError(
                f"{self.url}: a remote of another version than {VERSION}. Upgrade embedcache, or push again "
                "to a new folder."
            )
        return self

    def create(self) -> Remote:
        """Return this remote; write its marker where the place is empty.

        Raises:
            InputError: if it holds other things.
            RemoteError: as :meth:`open`.
        """
        if self.read(REMOTE_MARKER, 4096) is None:
            others = sorted(name for name in self.names_in("") if not name.startswith("."))
            if others and REMOTE_MARKER not in others:
                raise InputError(
                    f"{self.url}: no remote, and not empty ({', '.join(others[:3])}). Give an empty or new "
                    "folder."
                )
            self.write(REMOTE_MARKER, _MARKER)
        return self.open()

    def refuse_nested(self, folder: Path) -> None:
        """Raise :class:`InputError` where a folder remote contains a cache or lies in it."""
        if self.scheme == "file":
            mine, other = Path(self.url).resolve(), folder.resolve()
            if mine == other or mine in other.parents or other in mine.parents:
                raise InputError(
                    f"{mine}: a remote and a cache cannot contain each other. Give another folder."
                )

    # Names and bytes

    def names_in(self, folder: str) -> list[str]:
        """Return the names of the files and folders directly in a folder; none where it is missing."""
        found = self._call("list", self._fs.ls, folder, detail=False, missing=[])
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def find(self, folder: str) -> dict[str, Stat]:
        """Return all files below a folder (empty: the whole remote): path -> size and time."""
        found = self._call("list", self._fs.find, folder, detail=True, missing={})
        start = len(self._fs._strip_protocol(self._root)) + 1
        return {str(path)[start:]: stat_of(info) for path, info in found.items()}

    def objects(self) -> dict[str, Stat]:
        """Return all objects: sha256 -> size and time."""
        return {path[-64:]: stat for path, stat in self.find("objects").items() if is_object(path)}

    def stat(self, path: str) -> Stat | None:
        """Return size and time of a file; None where it is missing."""
        info = self._call("look for", self._fs.info, path, missing=None)
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
        self._call("write", upload, path, data, self._fs, aside=self.scheme in RENAMING)

    def put(self, sha256: str, data: bytes) -> None:
        """Send an object.

        Raises:
            RemoteError: if it cannot be written.
            InputError: if ``data`` has another digest than ``sha256``.
        """
        if hashlib.sha256(data).hexdigest() != sha256:
            raise InputError(
                f"a file of the cache is no longer {sha256[:12]}: run 'embedcache verify', then push again."
            )
        self.write(object_path(sha256), data)

    def delete(self, path: str) -> None:
        """Delete a file; harmless where it is missing."""
        self._call("delete", self._fs.rm_file, path, missing=None)

    def fetch(
        self, sha256: str, size: int, target: Path, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Bring an object to ``target``, which appears whole and checked.

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
        limit = Limit(f"{self.url}: {path}", most, self.stop, on_bytes)
        return bool(self._call("read", download, path, target, limit, self._fs, missing=False))

    def _call(
        self,
        what: str,
        act: Callable[..., Any],
        path: str,
        *args: Any,
        missing: Any = _RAISED,
        **options: Any,
    ) -> Any:
        """Call a function on a path of the remote, and turn errors of the client into :class:`RemoteError`.

        Args:
            what: a verb for the message.
            act: the function.
            path: file or folder of the remote.
            args, options: further arguments of the function.
            missing: the result for a missing file, which is an error without it.
        """
        try:
            return act(f"{self._root}/{path}".rstrip("/"), *args, **options)
        except EmbedCacheError:
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) and missing is not _RAISED:
                return missing
            raise RemoteError(f"{self.url}: cannot {what} {path or 'it'} ({shortly(error)}).") from error

    # Manifests

    def manifest_names(self) -> list[str]:
        """Return the file names of the manifests, oldest first."""
        return sorted(filter(is_manifest_name, self.names_in(MANIFESTS)))

    def manifests(self, cache: Cache | None = None, names: Iterable[str] | None = None) -> ManifestSet:
        """Return the manifests ``names``; default: all.

        Args:
            cache: keeps copies of them in ``derived/remotes``.
            names: the manifests.

        Raises:
            RemoteError: if one cannot be read, is damaged, too large or lists what no cache holds.
        """
        copies = None if cache is None else cache.derived_folder / "remotes" / self.id
        every = self.manifest_names() if names is None else list(names)
        read = self.in_threads(partial(self._manifest, copies), every)
        # A manifest may have been taken back since it was listed.
        return ManifestSet({name: one for name, one in zip(every, read, strict=True) if one is not None})

    def _manifest(self, copies: Path | None, name: str) -> Manifest | None:
        data: bytes | None = None
        if copies is not None:
            with suppress(OSError):
                data = (copies / name).read_bytes()
        if data is None or hashlib.sha256(data).hexdigest() != digest_in(name):
            data = self.read(f"{MANIFESTS}/{name}", MOST_MANIFEST_BYTES)
            if data is None:
                return None
            if copies is not None:
                with suppress(OSError):
                    (make_directory(copies) / name).write_bytes(data)
        try:
            return parse_manifest(name, data)
        except ValueError as error:
            raise RemoteError(
                f"{self.url}: manifest {digest_in(name)[:12]} is refused ({error}). Leave it out with "
                f"--skip-manifest {digest_in(name)[:12]}, or take it back with 'embedcache remote drop'."
            ) from error

    def in_threads(self, act: Callable[[_Item], _T], items: Iterable[_Item]) -> list[_T]:
        """Return the results of ``act`` for each item, several at once; the first error ends the rest."""
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


def is_object(path: str) -> bool:
    """Return whether a path on a remote is that of an object."""
    return _OBJECT.fullmatch(path) is not None
