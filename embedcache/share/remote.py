"""A remote: objects named by their digests, and the manifests that list them. Format: docs/remote-format.md.

What is read comes from strangers, so everything has a size limit, and objects are checked against their
digests.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from fsspec.callbacks import Callback

from embedcache.cache import REMOTE_MARKER, Cache
from embedcache.errors import EmbedCacheError, InputError, RemoteError
from embedcache.fsio import TEMPORARY_PREFIX, explain_os_error, make_directory, sha256_file, spelled_json
from embedcache.share.location import READ_ONLY, RENAMING, open_filesystem, scheme_of
from embedcache.share.manifest import (
    MOST_MANIFEST_BYTES,
    Manifest,
    Stock,
    digest_in,
    is_manifest_name,
    parse_manifest,
    refused,
)
from embedcache.share.names import url_of

JOBS = 8
VERSION = 2
MANIFESTS, DROPPED = "manifests", "dropped"
_MARKER = spelled_json({"version": VERSION})
_MOST_LISTED = 2_000_000
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")

_T = TypeVar("_T")
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Stat:
    """Size in bytes of an object, and the time it was written, in seconds since 1970 (0: unknown)."""

    bytes: int
    time: float


class DamagedError(RemoteError):
    """An object of a remote has other bytes than its name says, or more than it may have."""


class MissingError(RemoteError):
    """An object that a manifest lists is not on the remote."""


class Remote:
    """The remote at ``remote``, a name or a URL; nothing is read until it is needed.

    Raises:
        InputError: if the name or the URL cannot be used.
    """

    def __init__(self, remote: str) -> None:
        self.url = url_of(remote)
        self.scheme = scheme_of(self.url)
        self.id = hashlib.sha256(self.url.encode()).hexdigest()[:32]
        self.stop = threading.Event()
        """Set to let transfers in other threads end."""

    @cached_property
    def _place(self) -> tuple[Any, str]:
        try:
            return open_filesystem(self.url)
        except FileNotFoundError as error:
            # A client's own file, such as a list of known hosts; it must not pass for a missing object.
            raise RemoteError(f"{self.url}: cannot connect ({error}).") from error

    def open(self) -> Remote:
        """Return this remote once its marker was read.

        Raises:
            RemoteError: if it cannot be reached, there is no remote, or it has another version.
        """
        data = self.read(REMOTE_MARKER, 4096)
        if data is None:
            raise RemoteError(f"{self.url}: no remote there. 'embedcache push' to it makes one.")
        try:
            version = json.loads(data)["version"]
        except (ValueError, KeyError, TypeError):
            version = "unknown"
        if version != VERSION:
            advice = (
                "upgrade embedcache" if isinstance(version, int) and version > VERSION else "push again to "
            )
            advice += "" if advice.startswith("up") else "a new folder"
            raise RemoteError(
                f"{self.url}: a remote of version {str(version)[:20]}, expected {VERSION}: {advice}."
            )
        return self

    def create(self, cache: Cache) -> Remote:
        """Return this remote, with a marker written where the place is empty.

        Raises:
            InputError: if it is read-only, inside ``cache`` or around it, or holds other things.
            RemoteError: as :meth:`open`.
        """
        if self.scheme in READ_ONLY:
            raise InputError(f"{self.url}: {self.scheme}:// remotes are read-only. Push to another kind.")
        self.refuse_nested(cache.folder)
        if self.read(REMOTE_MARKER, 4096) is None:
            others = [name for name in self.names_in("") if not name.startswith(".")]
            if others and REMOTE_MARKER not in self.names_in(""):
                raise InputError(
                    f"{self.url}: no remote, and not empty ({', '.join(sorted(others)[:3])}). Give an empty "
                    "or new folder."
                )
            self.write(REMOTE_MARKER, _MARKER)
        return self.open()

    def refuse_nested(self, folder: Path) -> None:
        """Refuse a remote in a folder that contains a cache or lies in it."""
        if self.scheme == "file":
            mine, other = Path(self.url).resolve(), folder.resolve()
            if mine == other or mine in other.parents or other in mine.parents:
                raise InputError(
                    f"{mine}: a remote and a cache cannot contain each other. Give another folder."
                )

    # Names and bytes

    def names_in(self, folder: str) -> list[str]:
        """Return the names of what lies directly in a folder of the remote; none where it is missing."""

        def names() -> list[str]:
            fs, root = self._place
            found = fs.ls(f"{root}/{folder}".rstrip("/"), detail=False)
            return [str(path).rstrip("/").rpartition("/")[2] for path in found]

        return self._explained(f"list {folder or 'it'}", names, missing=[])

    def objects(self) -> dict[str, Stat]:
        """Return all objects: sha256 -> size and time.

        Raises:
            RemoteError: if they cannot be listed, or are too many.
        """
        found = self._find("objects")
        return {path.rpartition("/")[2]: stat for path, stat in found.items() if is_object(path)}

    def temporaries(self) -> dict[str, Stat]:
        """Return what killed pushes have left unfinished: path -> size and time."""
        found = self._find("") if self.scheme in RENAMING else {}
        return {path: one for path, one in found.items() if path.split("/")[-1].startswith(TEMPORARY_PREFIX)}

    def _find(self, folder: str) -> dict[str, Stat]:
        def find() -> dict[str, Stat]:
            fs, root = self._place
            found = fs.find(f"{root}/{folder}".rstrip("/"), detail=True)
            if len(found) > _MOST_LISTED:
                raise RemoteError(f"{self.url}: {len(found):,} files, expected {_MOST_LISTED:,} at most.")
            start = len(fs._strip_protocol(root)) + 1
            return {str(path)[start:]: _stat(info) for path, info in found.items()}

        return self._explained(f"list {folder or 'it'}", find, missing={})

    def stat(self, path: str) -> Stat | None:
        """Return size and time of a file; None where it is missing."""

        def info() -> Stat | None:
            fs, root = self._place
            return _stat(fs.info(f"{root}/{path}"))

        return self._explained(f"look for {path}", info, missing=None)

    def read(self, path: str, most: int) -> bytes | None:
        """Return the content of a small file; None where it is missing.

        Raises:
            RemoteError: if it cannot be read, or has more than ``most`` bytes.
        """
        with TemporaryDirectory(prefix="embedcache-") as folder:
            target = Path(folder) / "file"
            try:
                self._download(path, target, most)
            except FileNotFoundError:
                return None
            return target.read_bytes()

    def write(self, path: str, data: bytes | memoryview | Path) -> None:
        """Write a file so that it appears whole; one of the same name is replaced."""

        def put() -> None:
            fs, root = self._place
            target = f"{root}/{path}"
            folder, _, name = target.rpartition("/")
            aside = f"{folder}/{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{name}"
            place = aside if self.scheme in RENAMING else target
            try:
                if isinstance(data, Path):
                    fs.put_file(str(data), place)
                else:
                    if self.scheme in RENAMING:
                        fs.makedirs(folder, exist_ok=True)
                    fs.pipe_file(place, bytes(data))
                if place is aside:
                    fs.mv(aside, target)
            except BaseException:
                if place is aside:
                    with suppress(Exception):
                        fs.rm_file(aside)
                raise

        try:
            self._explained(f"write {path}", put)
        except FileNotFoundError as error:
            raise RemoteError(
                f"{self.url}: cannot write {path}: no such bucket or folder ({error})."
            ) from error

    def put(self, sha256: str, data: memoryview | Path) -> int:
        """Send an object once its bytes were checked; return its size.

        Raises:
            RemoteError: if it cannot be written.
            EmbedCacheError: if ``data`` is not what ``sha256`` is the digest of.
        """
        digest = sha256_file(data) if isinstance(data, Path) else hashlib.sha256(data).hexdigest()
        if digest != sha256:
            where = data if isinstance(data, Path) else f"shard {sha256[:12]}"
            raise InputError(f"{where} is damaged or was replaced: run 'embedcache verify', then push again.")
        self.write(object_path(sha256), data)
        return data.stat().st_size if isinstance(data, Path) else data.nbytes

    def delete(self, path: str) -> None:
        """Delete a file; harmless where it is gone."""

        def remove() -> None:
            fs, root = self._place
            fs.rm_file(f"{root}/{path}")

        self._explained(f"delete {path}", remove, missing=None)

    def fetch(
        self, sha256: str, size: int, target: Path, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Bring an object to ``target``, which appears whole, checked and durable.

        Raises:
            MissingError, DamagedError, RemoteError: if it is missing, has other bytes, or cannot be read.
            StorageError: if ``target`` cannot be written.
        """
        aside = target.with_name(f"{TEMPORARY_PREFIX}{uuid.uuid4().hex}-{sha256}")
        try:
            self._download(object_path(sha256), aside, size, on_bytes)
            found = aside.stat().st_size
            if found != size or _sha256_at_once(aside) != sha256:
                raise DamagedError(
                    f"{self.url}: object {sha256[:12]} is damaged ({found:,} of {size:,} bytes)."
                )
            with aside.open("rb") as handle:
                os.fsync(handle.fileno())
            aside.replace(target)
        except FileNotFoundError:
            raise MissingError(f"{self.url}: object {sha256[:12]} is missing.") from None
        except OSError as error:
            if isinstance(error, EmbedCacheError):
                raise
            raise explain_os_error(error, target) from error
        finally:
            aside.unlink(missing_ok=True)

    def _download(
        self, path: str, target: Path, most: int, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Write a file of the remote, of at most ``most`` bytes, to ``target``."""

        def get() -> None:
            fs, root = self._place
            if self.scheme == "file" and fs.info(f"{root}/{path}")["size"] > most:
                raise DamagedError(f"{self.url}: {path} has more than the {most:,} bytes it may have.")
            with target.open("wb"):
                pass
            limit = _Limit(self, path, most, on_bytes)
            fs.get_file(f"{root}/{path}", str(target), callback=limit)
            # Folders are copied without a word.
            limit.absolute_update(target.stat().st_size)

        self._explained(f"read {path}", get)

    # Manifests

    def manifest_names(self) -> list[str]:
        """Return the file names of the manifests, oldest first."""
        return sorted(filter(is_manifest_name, self.names_in(MANIFESTS)))

    def read_manifest(
        self, name: str, copies: Path | None = None, folder: str = MANIFESTS
    ) -> Manifest | None:
        """Return a manifest, None where it is missing; the folder ``copies`` keeps it for the next time.

        Raises:
            RemoteError: if it is damaged, too large or lists what no cache holds.
        """
        kept = None if copies is None else copies / name
        data = None
        if kept is not None:
            with suppress(OSError):
                data = kept.read_bytes()
                if hashlib.sha256(data).hexdigest() != digest_in(name):
                    data = None
        if data is None:
            data = self.read(f"{folder}/{name}", MOST_MANIFEST_BYTES)
            if data is None:
                return None
            if kept is not None:
                with suppress(OSError):
                    make_directory(kept.parent)
                    kept.write_bytes(data)
        try:
            return parse_manifest(name, data)
        except ValueError as error:
            raise refused(self.url, name, error) from error

    def stock(self, cache: Cache | None = None, names: Iterable[str] | None = None) -> Stock:
        """Return what the manifests ``names`` (default: all) list.

        Args:
            cache: keeps copies of them in ``derived/remotes``.
            names: the manifests.

        Raises:
            RemoteError: if one cannot be used.
        """
        copies = None if cache is None else cache.derived_folder / "remotes" / self.id
        every = self.manifest_names() if names is None else list(names)
        read = self.in_threads(lambda name: self.read_manifest(name, copies), every)
        if copies is not None and names is None and copies.is_dir():
            for path in copies.iterdir():
                if path.name not in every:
                    path.unlink(missing_ok=True)
        # One that was taken back since it was listed does not count.
        return Stock({name: one for name, one in zip(every, read, strict=True) if one is not None})

    # Threads, retries and errors

    def in_threads(self, act: Callable[[_Item], _T], items: Iterable[_Item], jobs: int = JOBS) -> list[_T]:
        """Return what ``act`` gives for each item, several at once; the first error ends the rest."""
        pool = ThreadPoolExecutor(jobs, thread_name_prefix="remote")
        try:
            futures = [pool.submit(act, item) for item in items]
            pending = set(futures)
            while pending:
                # With a timeout, or Ctrl-C would not reach a main thread that waits.
                done, pending = wait(pending, timeout=0.5)
                for future in done:
                    future.result()
            return [future.result() for future in futures]
        except BaseException:
            self.stop.set()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
            self.stop.clear()

    def _explained(self, what: str, act: Callable[[], _T], **missing: _T) -> _T:
        """Return what ``act`` gives, tried several times, its errors turned into :class:`RemoteError`.

        Args:
            what: what is done, for the message.
            act: does it.
            missing: the keyword ``missing`` gives the answer for a file that is missing; without it,
                ``FileNotFoundError`` is raised.
        """
        waits, began = [0.2, 0.8, 3.2], time.monotonic()
        while True:
            try:
                return act()
            except FileNotFoundError:
                if "missing" in missing:
                    return missing["missing"]
                raise
            except (EmbedCacheError, ImportError):
                raise
            except Exception as error:
                # Some clients have tried again for long enough themselves.
                is_last = not waits or time.monotonic() - began > 10
                if is_last or isinstance(error, PermissionError) or self.stop.is_set():
                    reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:300]}"
                    raise RemoteError(f"{self.url}: cannot {what} ({reason}).") from error
                if self.scheme == "sftp":  # its client never connects again
                    self.__dict__.pop("_place", None)
            self.stop.wait(waits.pop(0))


class _Limit(Callback):  # type: ignore[misc]
    """Counts the bytes of a download, and ends one that is too large or not wanted any more."""

    def __init__(self, remote: Remote, path: str, most: int, on_bytes: Callable[[int], None] | None) -> None:
        super().__init__()
        self._remote, self._path, self._most, self._on_bytes = remote, path, most, on_bytes
        self._counted = 0

    def call(self, hook_name: str | None = None, **kwargs: Any) -> None:
        """Look at the count; fsspec calls this for every block."""
        if self._remote.stop.is_set():
            raise RemoteError(f"{self._remote.url}: stopped.")
        if self.value > self._most:
            raise DamagedError(
                f"{self._remote.url}: {self._path} has more than the {self._most:,} bytes it may have."
            )
        if self._on_bytes is not None and self.value > self._counted:
            self._on_bytes(self.value - self._counted)
            self._counted = self.value


def _sha256_at_once(path: Path) -> str:
    """Return the digest of a file that nothing else changes; other threads run meanwhile."""
    with path.open("rb") as handle:
        if not path.stat().st_size:
            return hashlib.sha256().hexdigest()
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return hashlib.sha256(data).hexdigest()


def object_path(sha256: str) -> str:
    """Return where an object lies on a remote."""
    return f"objects/{sha256[:2]}/{sha256}"


def is_object(path: str) -> bool:
    """Return whether a path on a remote is an object's."""
    sha256 = path.rpartition("/")[2]
    return len(sha256) == 64 and not set(sha256) - set("0123456789abcdef") and path == object_path(sha256)


def _stat(info: dict[str, Any]) -> Stat:
    for field in _TIMES:
        value = info.get(field)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        if isinstance(value, datetime):
            return Stat(int(info.get("size") or 0), value.timestamp())
        if isinstance(value, (int, float)):
            return Stat(int(info.get("size") or 0), float(value))
    return Stat(int(info.get("size") or 0), 0.0)
