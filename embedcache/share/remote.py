"""A remote: objects named by their digests, and the manifests that list them. Format: docs/remote-format.md.

Content is untrusted: every read has a size limit, and objects are checked against their digests.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from embedcache.cache import REMOTE_MARKER, Cache
from embedcache.errors import EmbedCacheError, InputError, RemoteError
from embedcache.fsio import TEMPORARY_PREFIX, explain_os_error, make_directory, sha256_file, spelled_json
from embedcache.share.location import READ_ONLY, RENAMING, open_filesystem, scheme_of
from embedcache.share.manifest import (
    MOST_MANIFEST_BYTES,
    Manifest,
    ManifestSet,
    digest_in,
    is_manifest_name,
    parse_manifest,
    refused,
)
from embedcache.share.names import url_of
from embedcache.share.transfer import DamagedError, Limit, Stat, get, put_aside, put_whole, stat_of

JOBS = 8
VERSION = 2
MANIFESTS, DROPPED = "manifests", "dropped"
_MARKER = spelled_json({"version": VERSION})
_OBJECT = re.compile(r"objects/[0-9a-f]{2}/[0-9a-f]{64}")
_BUGS = (KeyError, TypeError, AttributeError, NameError)
_RAISED = object()

_T = TypeVar("_T")
_Item = TypeVar("_Item")


class MissingError(RemoteError):
    """Listed object that is missing on the remote."""


class Remote:
    """Remote at ``remote``, a name or a URL; connects at the first read.

    Raises:
        InputError: if the name or the URL cannot be used.
    """

    def __init__(self, remote: str) -> None:
        self.url = url_of(remote)
        self.scheme = scheme_of(self.url)
        self.id = hashlib.sha256(self.url.encode()).hexdigest()[:32]
        self.stop = threading.Event()
        """Set to end transfers in other threads."""

    @cached_property
    def _place(self) -> tuple[Any, str]:
        try:
            return open_filesystem(self.url)
        except FileNotFoundError as error:
            # A client's own file, such as known_hosts, is no missing object.
            raise RemoteError(f"{self.url}: cannot connect ({error}).") from error

    def open(self) -> Remote:
        """Read the marker and return this remote.

        Raises:
            RemoteError: if it cannot be reached, is no remote, or has another version.
        """
        data = self.read(REMOTE_MARKER, 4096)
        if data is None:
            raise RemoteError(f"{self.url}: no remote there. 'embedcache push' to it makes one.")
        with suppress(ValueError, KeyError, TypeError):
            if json.loads(data)["version"] == VERSION:
                return self
        raise RemoteError(
            f"{self.url}: a remote of another version than {VERSION}. Upgrade embedcache, or push again to a "
            "new folder."
        )

    def create(self, cache: Cache) -> Remote:
        """Return this remote; write its marker where the place is empty.

        Raises:
            InputError: if it is read-only, inside ``cache`` or around it, or holds other things.
            RemoteError: as :meth:`open`.
        """
        if self.scheme in READ_ONLY:
            raise InputError(f"{self.url}: {self.scheme}:// remotes are read-only. Push to another kind.")
        self.refuse_nested(cache.folder)
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
        found = self._call("list", "ls", folder, detail=False, missing=[])
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def find(self, folder: str) -> dict[str, Stat]:
        """Return all files below a folder (empty: the whole remote): path -> size and time."""
        found = self._call("list", "find", folder, detail=True, missing={})
        fs, root = self._place
        start = len(fs._strip_protocol(root)) + 1
        return {str(path)[start:]: stat_of(info) for path, info in found.items()}

    def objects(self) -> dict[str, Stat]:
        """Return all objects: sha256 -> size and time."""
        return objects_among(self.find("objects"))

    def stat(self, path: str) -> Stat | None:
        """Return size and time of a file; None where it is missing."""
        info = self._call("look for", "info", path, missing=None)
        return None if info is None else stat_of(info)

    def read(self, path: str, most: int) -> bytes | None:
        """Return the content of a small file; None where it is missing.

        Raises:
            RemoteError: if it cannot be read, or has more than ``most`` bytes.
        """
        with TemporaryDirectory(prefix="embedcache-") as folder:
            target = Path(folder) / "file"
            try:
                self._download(path, target, most)
            except MissingError:
                return None
            return target.read_bytes()

    def write(self, path: str, data: bytes | memoryview | Path) -> None:
        """Write a file so that it appears whole; one of the same name is replaced."""
        self._call("write", put_aside if self.scheme in RENAMING else put_whole, path, data)

    def put(self, sha256: str, data: memoryview | Path) -> None:
        """Send an object after checking its bytes.

        Raises:
            RemoteError: if it cannot be written.
            InputError: if ``data`` has another digest than ``sha256``.
        """
        digest = sha256_file(data) if isinstance(data, Path) else hashlib.sha256(data).hexdigest()
        if digest != sha256:
            where = data if isinstance(data, Path) else f"shard {sha256[:12]}"
            raise InputError(f"{where} is damaged or was replaced: run 'embedcache verify', then push again.")
        self.write(object_path(sha256), data)

    def delete(self, path: str) -> None:
        """Delete a file; harmless where it is missing."""
        self._call("delete", "rm_file", path, missing=None)

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
        except EmbedCacheError:
            raise
        except OSError as error:
            raise explain_os_error(error, target) from error
        finally:
            aside.unlink(missing_ok=True)

    def _download(
        self, path: str, target: Path, most: int, on_bytes: Callable[[int], None] | None = None
    ) -> None:
        """Write a file of the remote, of at most ``most`` bytes, to ``target``."""

        self._call("read", get, path, target, Limit(f"{self.url}: {path}", most, self.stop, on_bytes))

    # Manifests

    def manifest_names(self) -> list[str]:
        """Return the file names of the manifests, oldest first."""
        return sorted(filter(is_manifest_name, self.names_in(MANIFESTS)))

    def read_manifest(self, name: str, copies: Path | None = None) -> Manifest | None:
        """Return a manifest, None where it is missing; the folder ``copies`` keeps it for the next time.

        Raises:
            RemoteError: if it cannot be read, is damaged, too large or lists what no cache holds.
        """
        kept = None if copies is None else copies / name
        data: bytes | None = None
        with suppress(OSError):
            data = kept.read_bytes() if kept is not None else None
        if data is None or hashlib.sha256(data).hexdigest() != digest_in(name):
            data = self.read(f"{MANIFESTS}/{name}", MOST_MANIFEST_BYTES)
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

    def manifests(self, cache: Cache | None = None, names: Iterable[str] | None = None) -> ManifestSet:
        """Return the manifests ``names``; default: all.

        Args:
            cache: keeps copies of them in ``derived/remotes``.
            names: the manifests.

        Raises:
            RemoteError: if one cannot be used.
        """
        copies = None if cache is None else cache.derived_folder / "remotes" / self.id
        every = self.manifest_names() if names is None else list(names)
        read = self.in_threads(lambda name: self.read_manifest(name, copies), every)
        # A manifest may have been taken back since it was listed.
        return ManifestSet({name: one for name, one in zip(every, read, strict=True) if one is not None})

    # Threads, retries and errors

    def in_threads(self, act: Callable[[_Item], _T], items: Iterable[_Item]) -> list[_T]:
        """Return the results of ``act`` for each item, several at once; the first error ends the rest."""
        pool = ThreadPoolExecutor(JOBS, thread_name_prefix="remote")
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

    def _call(
        self,
        what: str,
        method: str | Callable[..., Any],
        path: str,
        *args: Any,
        missing: Any = _RAISED,
        **options: Any,
    ) -> Any:
        """Call a filesystem method on a path of the remote; retry, and turn errors into :class:`RemoteError`.

        Args:
            what: a verb for the message.
            method: name of the method, or a function that takes the filesystem first.
            path: file or folder of the remote.
            args, options: further arguments of the method.
            missing: the result for a missing file; without it :class:`MissingError` is raised.
        """
        waits, began = [0.2, 0.8, 3.2], time.monotonic()
        while True:
            try:
                fs, root = self._place
                act = getattr(fs, method) if isinstance(method, str) else partial(method, fs)
                return act(f"{root}/{path}".rstrip("/"), *args, **options)
            except FileNotFoundError as error:
                if missing is _RAISED:
                    raise MissingError(
                        f"{self.url}: cannot {what} {path}: it is missing, or its bucket or folder."
                    ) from error
                return missing
            except (EmbedCacheError, ImportError, *_BUGS):
                raise
            except Exception as error:
                # Some clients have tried again for long enough themselves.
                is_last = not waits or time.monotonic() - began > 10
                if is_last or isinstance(error, PermissionError) or self.stop.is_set():
                    reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:300]}"
                    raise RemoteError(f"{self.url}: cannot {what} {path or 'it'} ({reason}).") from error
                if self.scheme == "sftp":  # its client never connects again
                    self.__dict__.pop("_place", None)
            self.stop.wait(waits.pop(0))


def _sha256_at_once(path: Path) -> str:
    """Return the digest of a file that nothing else changes; other threads run meanwhile."""
    with path.open("rb") as handle:
        if not path.stat().st_size:
            return hashlib.sha256().hexdigest()
        with mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return hashlib.sha256(data).hexdigest()


def object_path(sha256: str) -> str:
    """Return the path of an object on a remote."""
    return f"objects/{sha256[:2]}/{sha256}"


def objects_among(files: dict[str, Stat]) -> dict[str, Stat]:
    """Return the objects among the files of a remote: sha256 -> size and time."""
    found = {path[-64:]: stat for path, stat in files.items() if _OBJECT.fullmatch(path)}
    return {sha256: stat for sha256, stat in found.items() if object_path(sha256) in files}
