"""Which keys the shards of a teacher on a remote have, and where: read from their row indexes."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import threading
import weakref
from collections.abc import Collection
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.check.progress import Meter
from embedcache.conversions import Conversions
from embedcache.errors import CacheFormatError, CorruptCacheError, RemoteError, StorageError
from embedcache.fsio import regular_size, sha256_file
from embedcache.key_index import KeyIndex
from embedcache.keys import KeyArray
from embedcache.share.remote.documents import missing, unlike
from embedcache.share.remote.download import download
from embedcache.share.remote.manifest import IndexObject, SharedFile, Stock
from embedcache.share.remote.remote import BLOCK_BYTES, Remote, object_path
from embedcache.share.retry import retrying, shortened
from embedcache.share.rows.index_notes import IndexNotes
from embedcache.share.rows.kept_files import link_kept, write_kept
from embedcache.share.rows.shard_index import ShardIndex, index_bytes
from embedcache.share.transfer import JOBS, run_all
from embedcache.store.reading_order import reading_rank
from embedcache.store.shard import ShardHeader

if TYPE_CHECKING:
    import pyarrow as pa

    from embedcache.contract import Contract

_ENDING = ".index"


class RemoteKeys:
    """The keys of one teacher's shards on a remote.

    Nothing is fetched before it is needed. What was fetched stays in the derived files of ``cache``, and is
    read from there the next time; in memory there is the index of one shard at a time.

    Args:
        remote: the remote.
        cache: keeps row indexes for the next time; without one they last as long as this object.
        stock: what the remote has.
        contract_id: the teacher.
        without: sha256 of shards to leave out, say because their rows are here.

    Attributes:
        remote, cache, stock, contract_id: as given.
        shards: the teacher's shards, sorted by sha256.
    """

    def __init__(
        self,
        remote: Remote,
        cache: Cache | None,
        stock: Stock,
        contract_id: str,
        *,
        without: Collection[str] = (),
    ) -> None:
        self.remote, self.cache, self.stock, self.contract_id = remote, cache, stock, contract_id
        mine = [file for file in stock if file.entry.kind is Kind.SHARD and file.entry.teacher == contract_id]
        self.shards: tuple[SharedFile, ...] = tuple(
            sorted((file for file in mine if file.sha256 not in without), key=lambda file: file.sha256)
        )
        self._notes = IndexNotes(cache)
        self._made: dict[str, IndexObject] = {}
        self._places: dict[str, Path] = {}
        self._headers: dict[str, ShardHeader] = {}
        self._lock = threading.Lock()
        self._scratch = _Scratch()

    @classmethod
    def lacking(cls, remote: Remote, stock: Stock, cache: Cache | None, contract: Contract) -> RemoteKeys:
        """Return the keys of the shards of a teacher that a cache has neither as they are nor converted.

        Args:
            remote, stock: as for the class.
            cache: the cache, which keeps row indexes; None: there is none yet, and nothing in it.
            contract: the teacher.
        """
        here: set[str] = set()
        if cache is not None:
            container = cache.container(contract)
            here = {*container.names(), *Conversions(cache).sources(container)}
        return cls(remote, cache, stock, contract.id, without=here)

    def __len__(self) -> int:
        """Return how many rows there are; a key that stands in two shards counts twice."""
        return sum(shard.rows for shard in self.shards)

    def of_codecs(self, names: Collection[str]) -> RemoteKeys:
        """Return the same, with the shards alone whose codec is one of ``names``."""
        self.load()
        found = copy(self)
        found.shards = tuple(shard for shard in self.shards if self.header(shard).codec in names)
        return found

    def into(self, cache: Cache) -> RemoteKeys:
        """Return the same for taking rows into another cache; what was fetched is not fetched again."""
        self.load()
        found = copy(self)
        found.cache = cache
        return found

    def kept_in(self, cache: Cache) -> RemoteKeys:
        """Return the same for a cache that is new, and keeps from now on what was fetched."""
        found = self.into(cache)
        found._notes, found._places = IndexNotes(cache), {}
        for shard, place in self._places.items():
            kept = self._kept_folder(cache) / place.name
            try:
                link_kept(place, kept)
            except StorageError:
                kept = place
            found._places[shard] = kept
        found._notes.add(self._made)
        return found

    def bytes_to_load(self) -> int:
        """Return how much :meth:`load` would fetch, as far as the sizes of what is here tell."""
        return sum(map(self._bytes_to_fetch, self.shards))

    def whole_to_load(self) -> list[SharedFile]:
        """Return the shards that :meth:`load` would fetch whole: those that nobody has a row index of."""
        return [shard for shard in self.shards if shard.index is None and self._bytes_to_fetch(shard)]

    def _bytes_to_fetch(self, shard: SharedFile) -> int:
        index = self._named(shard)
        if shard.sha256 in self._places:
            return 0
        if index is not None and self.cache is not None:
            kept = self._kept_folder(self.cache) / f"{index.sha256}{_ENDING}"
            if kept.is_file() and kept.stat().st_size == index.bytes:
                return 0
        return shard.bytes if shard.index is None else shard.index.bytes

    def load(self, meter: Meter | None = None, jobs: int = JOBS) -> None:
        """Fetch all row indexes that are not here; the others are found sound.

        Args:
            meter: counts them and their bytes.
            jobs: transfers at once.

        Raises:
            RemoteError: if one cannot be had, or is refused.
            StorageError: if there is no room for them.
        """
        left = [shard for shard in self.shards if shard.sha256 not in self._places]
        if not left:
            return
        meter = meter or Meter()
        meter.begin("read row indexes", total_files=len(left), total_bytes=self.bytes_to_load())

        def fetch(shard: SharedFile) -> None:
            self._fetch(shard, meter)
            meter.add(files=1)

        try:
            run_all(fetch, left, jobs=jobs, stop=self.remote.stop)
        finally:
            self._notes.add(self._made)

    def index(self, shard: SharedFile) -> ShardIndex:
        """Return the row index of one of :attr:`shards`, fetched where it is not here.

        Raises:
            RemoteError: if it cannot be had, or is refused.
        """
        if shard.sha256 not in self._places:
            self._fetch(shard, Meter())
            self._notes.add(self._made)
        return self._opened(shard, _mapped(self._places[shard.sha256]))

    def header(self, shard: SharedFile) -> ShardHeader:
        """Return what one of :attr:`shards` says about itself; errors as :meth:`index`."""
        if shard.sha256 not in self._headers:
            self._headers[shard.sha256] = self.index(shard).header
        return self._headers[shard.sha256]

    def reading_order(self, kept: str | None = None) -> list[int]:
        """Return the numbers of :attr:`shards` in the order in which a key is looked for, as in a store.

        Args:
            kept: the codec that rows are to be kept in, where that is known: those that are in it come first,
                for finer ones would be more to fetch and no better then.

        Raises:
            RemoteError: if a row index cannot be had, or is refused.
        """
        codecs = [self.header(shard).codec for shard in self.shards]
        ranks = [
            (codec != kept, *reading_rank(codec, shard.sha256))
            for codec, shard in zip(codecs, self.shards, strict=True)
        ]
        return sorted(range(len(ranks)), key=ranks.__getitem__)

    def locate(self, keys: KeyArray, kept: str | None = None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where each key is: the number of its shard in :attr:`shards`, and its row in that.

        Of a key in several shards it is the first in :meth:`reading_order`. Every shard's keys are looked up
        among ``keys``, so it is cheaper to ask for many at once. Memory is some tens of bytes for each of
        ``keys``, however many rows the remote has.

        Args:
            keys: dtype ``V16``, shape (n,).
            kept: as for :meth:`reading_order`.

        Returns:
            Two arrays of shape (n,); -1 in both where a key is missing.

        Raises:
            RemoteError: if a row index cannot be had, or is refused.
        """
        numbers = np.full(len(keys), -1, dtype=np.int64)
        rows = np.full(len(keys), -1, dtype=np.int64)
        asked = KeyIndex(keys)
        left = asked.distinct
        for number in self.reading_order(kept) if left else ():
            if not left:
                break
            places = asked.locate(self.index(self.shards[number]).keys)
            # From the end: of a key that stands in several rows the first is written last.
            hits = np.flatnonzero(places >= 0)[::-1]
            hits = hits[numbers[places[hits]] < 0]
            numbers[places[hits]], rows[places[hits]] = number, hits
            left -= len(np.unique(places[hits]))
        firsts = asked.locate(keys)
        return numbers[firsts], rows[firsts]

    def _named(self, shard: SharedFile) -> IndexObject | None:
        """Return the row index of a shard as a manifest names it, or as it was once made here."""
        return shard.index or self._notes.get(shard.sha256)

    def _fetch(self, shard: SharedFile, meter: Meter) -> None:
        index = self._named(shard)
        place = None if index is None else self._kept(index)
        if place is None and shard.index is not None:
            place = self._keep(shard.index, self._object(shard, shard.index))
            meter.add(size=shard.index.bytes)
        elif place is None:
            place = self._keep(*self._make(shard, meter))
        # Refused now, and not in the middle of a lookup.
        header = self._opened(shard, _mapped(place)).header
        with self._lock:
            self._places[shard.sha256], self._headers[shard.sha256] = place, header

    def _kept(self, index: IndexObject) -> Path | None:
        """Return the file of a row index that was fetched before, once it is found sound."""
        if self.cache is None:
            return None
        place = self._kept_folder(self.cache) / f"{index.sha256}{_ENDING}"
        try:
            # It may have come with somebody else's cache.
            sound = regular_size(place) == index.bytes and sha256_file(place) == index.sha256
        except (OSError, ValueError):
            return None
        return place if sound else None

    def _kept_folder(self, cache: Cache) -> Path:
        return cache.derived_folder / "remotes" / self.remote.id

    def _keep(self, index: IndexObject, data: bytes) -> Path:
        name = f"{index.sha256}{_ENDING}"
        if self.cache is not None:
            place = self._kept_folder(self.cache) / name
            try:
                write_kept(place, data)
            except StorageError:
                # Beside a cache that cannot be written to.
                place = self._scratch.folder / name
                write_kept(place, data)
            return place
        write_kept(self._scratch.folder / name, data)
        return self._scratch.folder / name

    def _object(self, shard: SharedFile, index: IndexObject) -> bytes:
        path = object_path(index.sha256)

        def act() -> bytes:
            found = bytearray()
            for block in self.remote.place.blocks(path, BLOCK_BYTES):
                found += block
                if len(found) > index.bytes:
                    raise unlike(path, len(found), index.bytes)
            if hashlib.sha256(found).hexdigest() != index.sha256:
                raise unlike(path, len(found), index.bytes)
            return bytes(found)

        try:
            return retrying(f"read {path}", self.remote.where, act, self.remote.stop)
        except FileNotFoundError:
            raise missing(self.remote, SharedFile(shard.path, index.sha256, index.bytes)) from None

    def _make(self, shard: SharedFile, meter: Meter) -> tuple[IndexObject, bytes]:
        """Fetch a shard without an index to make its index of it; then nobody's word is needed for that."""
        place = self._scratch.folder / f"{shard.sha256}.arrow"
        try:
            download(self.remote, shard, place, meter)
            data = index_bytes(_mapped(place), shard.sha256)
        except (CorruptCacheError, CacheFormatError) as error:
            raise self._refused(shard, str(error)) from error
        finally:
            place.unlink(missing_ok=True)
        index = IndexObject(hashlib.sha256(data).hexdigest(), len(data))
        with self._lock:
            self._made[shard.sha256] = index
        return index, data

    def _opened(self, shard: SharedFile, data: pa.Buffer) -> ShardIndex:
        try:
            index = ShardIndex.from_bytes(data, shard.sha256, shard.bytes, shard.rows)
            if index.header.contract.id != self.contract_id:
                raise ValueError(f"it belongs to the teacher {index.header.contract.id[:12]}…")
        except (ValueError, OverflowError, MemoryError) as error:
            raise self._refused(shard, str(error)) from error
        return index

    def _refused(self, shard: SharedFile, why: str) -> RemoteError:
        return RemoteError(
            f"the row index of {shard.path} of {self.remote.where} is refused ({shortened(why)}): its "
            "manifest is damaged or hostile; 'embedcache pull' takes whole shards, which need no index"
        )


class _Scratch:
    """A temporary folder that is there once it is needed, and goes with the last who holds it."""

    @cached_property
    def folder(self) -> Path:
        """The folder."""
        found = tempfile.mkdtemp(prefix="embedcache-keys-")
        weakref.finalize(self, shutil.rmtree, found, ignore_errors=True)
        return Path(found)


def _mapped(path: Path) -> pa.Buffer:
    import pyarrow as pa

    with pa.memory_map(str(path), "r") as source:
        return source.read_buffer()
