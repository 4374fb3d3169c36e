"""The row indexes of a teacher's shards on a remote: fetched or made once, and kept for the next time."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.errors import CacheFormatError, CorruptCacheError, RemoteError, StorageError
from embedcache.fsio import regular_size, sha256_file
from embedcache.share.limits import refuse_without_room
from embedcache.share.remote.download import download, read_object
from embedcache.share.remote.manifest import IndexObject, SharedFile
from embedcache.share.remote.remote import Remote
from embedcache.share.retry import shortened
from embedcache.share.rows.index_notes import IndexNotes
from embedcache.share.rows.kept_files import link_kept, write_kept
from embedcache.share.rows.shard_index import ShardIndex, index_bytes
from embedcache.share.temporaries import being_made
from embedcache.share.transfer import JOBS, PULL_PATIENCE_SECONDS, run_all
from embedcache.store.shard import ShardHeader

if TYPE_CHECKING:
    import pyarrow as pa

_ENDING = ".index"
_LESS = (
    "have row indexes added with 'embedcache push' from a cache that has these vectors; where there is no "
    "cache yet, TMPDIR can name another folder"
)


class RowIndexes:
    """The row indexes of one teacher's shards on a remote. Several selections of those shards may share them.

    Nothing is fetched before it is needed. What was fetched stays in the derived files of ``cache``, and is
    read from there the next time. In memory there are the headers of shards; the index itself is mapped while
    somebody uses it.

    Args:
        remote: the remote.
        cache: keeps row indexes for the next time; without one they last as long as this object.
        contract_id: the teacher.
    """

    def __init__(self, remote: Remote, cache: Cache | None, contract_id: str) -> None:
        self._remote, self._cache, self._contract_id = remote, cache, contract_id
        self._notes = IndexNotes(cache)
        self._made: dict[str, IndexObject] = {}
        self._places: dict[str, Path] = {}
        self._headers: dict[str, ShardHeader] = {}
        self._lock = threading.Lock()
        self._scratch = _Scratch()

    def kept_in(self, cache: Cache) -> RowIndexes:
        """Return the same for a cache that is new, which keeps from now on what was fetched."""
        indexes = RowIndexes(self._remote, cache, self._contract_id)
        indexes._made, indexes._headers = dict(self._made), dict(self._headers)
        # The temporary folder of indexes that cannot be copied has to last as long as the new object.
        indexes._scratch = self._scratch
        for shard, place in self._places.items():
            kept = self._folder_in(cache) / place.name
            try:
                link_kept(place, kept)
            except StorageError:
                kept = place
            indexes._places[shard] = kept
        indexes._notes.add(self._made)
        return indexes

    def bytes_to_fetch(self, shard: SharedFile) -> int:
        """Return how much has to be fetched for the index of a shard, as far as sizes of files tell."""
        if shard.sha256 in self._places:
            return 0
        index = self._named(shard)
        if index is not None and self._cache is not None:
            kept = self._file_in(self._cache, index)
            if kept.is_file() and kept.stat().st_size == index.bytes:
                return 0
        return shard.bytes if shard.index is None else shard.index.bytes

    def load(self, shards: Sequence[SharedFile], meter: Meter, jobs: int = JOBS) -> None:
        """Fetch the row indexes of shards that are not here; those of earlier times are found sound.

        Args:
            shards: which shards.
            meter: counts the indexes and their bytes.
            jobs: transfers at once.

        Raises:
            RemoteError: if one cannot be had, or is refused.
            StorageError: if there is no room for them.
        """
        left = [shard for shard in shards if shard.sha256 not in self._places]
        if not left:
            return
        meter.begin(
            "read row indexes", total_files=len(left), total_bytes=sum(map(self.bytes_to_fetch, left))
        )

        def fetch(shard: SharedFile) -> None:
            self._fetch(shard, meter)
            meter.add(files=1)

        try:
            run_all(fetch, left, jobs=jobs, stop=self._remote.stop, patience=PULL_PATIENCE_SECONDS)
        finally:
            self._notes.add(self._made)

    def index(self, shard: SharedFile) -> ShardIndex:
        """Return the row index of a shard, fetched where it is not here.

        Raises:
            RemoteError: if it cannot be had, or is refused.
            StorageError: if there is no room for it.
        """
        self._require(shard)
        return self._opened(shard, self._places[shard.sha256])

    def header(self, shard: SharedFile) -> ShardHeader:
        """Return what a shard says about itself; errors as :meth:`index`."""
        self._require(shard)
        return self._headers[shard.sha256]

    def _require(self, shard: SharedFile) -> None:
        if shard.sha256 not in self._places:
            self._fetch(shard, Meter())
            self._notes.add(self._made)

    def _named(self, shard: SharedFile) -> IndexObject | None:
        """Return the row index of a shard that a manifest names, or that was once made here."""
        return shard.index or self._notes.get(shard.sha256)

    def _fetch(self, shard: SharedFile, meter: Meter) -> None:
        index = self._named(shard)
        place = None if index is None else self._kept(index)
        if place is None and shard.index is not None:
            data = read_object(self._remote, shard.index, f"the row index of {shard.path}")
            place = self._keep(shard.index, data)
            meter.add(size=shard.index.bytes)
        elif place is None:
            place = self._keep(*self._make(shard, meter))
        # A wrong index is refused now, and not in the middle of a lookup.
        header = self._opened(shard, place).header
        with self._lock:
            self._headers[shard.sha256] = header
            self._places[shard.sha256] = place

    def _kept(self, index: IndexObject) -> Path | None:
        """Return the file of a row index that was fetched before, once it is found sound."""
        if self._cache is None:
            return None
        place = self._file_in(self._cache, index)
        try:
            # It may have come with somebody else's cache.
            is_sound = regular_size(place) == index.bytes and sha256_file(place) == index.sha256
        except (OSError, ValueError):
            return None
        if not is_sound:
            return None
        # 'embedcache gc' deletes what has not been used for long.
        with suppress(OSError):
            os.utime(place)
        return place

    def _file_in(self, cache: Cache, index: IndexObject) -> Path:
        return self._folder_in(cache) / f"{index.sha256}{_ENDING}"

    def _folder_in(self, cache: Cache) -> Path:
        return cache.derived_folder / "remotes" / self._remote.id

    def _keep(self, index: IndexObject, data: bytes) -> Path:
        """Write a row index into the cache, or where that is not possible into a temporary folder."""
        if self._cache is not None:
            place = self._file_in(self._cache, index)
            # Others may read a cache that cannot be written to.
            with suppress(StorageError):
                write_kept(place, data)
                return place
        place = self._scratch.folder / f"{index.sha256}{_ENDING}"
        write_kept(place, data)
        return place

    def _make(self, shard: SharedFile, meter: Meter) -> tuple[IndexObject, bytes]:
        """Fetch a shard without a row index, and make its index: then no manifest has to be trusted."""
        with ExitStack() as stack:
            place = self._place_of_whole(shard, stack)
            refuse_without_room(place.parent, shard.bytes, _LESS)
            try:
                download(self._remote, shard, place, meter)
                data = index_bytes(_mapped(place), shard.sha256)
            except (CorruptCacheError, CacheFormatError) as error:
                raise self._refused(shard, str(error)) from error
        index = IndexObject(hashlib.sha256(data).hexdigest(), len(data))
        with self._lock:
            self._made[shard.sha256] = index
        return index, data

    def _place_of_whole(self, shard: SharedFile, stack: ExitStack) -> Path:
        """Return a temporary file for a shard, which is gone at the end of ``stack``.

        It lies beside the cache's own files, for which there is room: folders for temporary files are small
        on many machines.
        """
        name = f"{shard.sha256}.arrow"
        if self._cache is not None:
            with suppress(StorageError):
                return stack.enter_context(being_made(self._folder_in(self._cache) / name))
        place = self._scratch.folder / name
        stack.callback(place.unlink, missing_ok=True)
        return place

    def _opened(self, shard: SharedFile, place: Path) -> ShardIndex:
        try:
            index = ShardIndex.from_bytes(_mapped(place), shard.sha256, shard.bytes, shard.rows)
            if index.header.contract.id != self._contract_id:
                raise ValueError(f"it belongs to the teacher {index.header.contract.id[:12]}…")
        except (ValueError, OverflowError, MemoryError) as error:
            raise self._refused(shard, str(error)) from error
        return index

    def _refused(self, shard: SharedFile, why: str) -> RemoteError:
        lists = self._remote.listed_so(shard)
        return RemoteError(
            f"the row index of {shard.path} of {self._remote.where} is refused ({shortened(why)}): its "
            f"manifest is damaged or hostile{lists and f' ({lists})'}; 'embedcache pull' takes whole shards, "
            "which need no index"
        )


class _Scratch:
    """A temporary folder, made when it is used first and deleted with the last reference to this object."""

    @cached_property
    def folder(self) -> Path:
        """The folder."""
        folder = tempfile.mkdtemp(prefix="embedcache-keys-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)


def _mapped(path: Path) -> pa.Buffer:
    import pyarrow as pa

    with pa.memory_map(str(path), "r") as source:
        return source.read_buffer()
