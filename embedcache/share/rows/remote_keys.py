"""The keys of a teacher's shards on a remote, and the shard and row of each."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.check.progress import Meter
from embedcache.conversions import Conversions
from embedcache.key_index import KeyIndex
from embedcache.keys import KeyArray
from embedcache.share.remote.manifest import SharedFile, Stock
from embedcache.share.remote.remote import Remote
from embedcache.share.rows.row_indexes import RowIndexes
from embedcache.share.rows.shard_index import ShardIndex
from embedcache.share.transfer import JOBS
from embedcache.store.reading_order import reading_rank
from embedcache.store.shard import ShardHeader

if TYPE_CHECKING:
    from embedcache.contract import Contract


class RemoteKeys:
    """The keys of some of a teacher's shards on a remote, which are read from :class:`RowIndexes`.

    Nothing is fetched before it is needed. Row indexes are mapped, and not kept open here.

    Args:
        remote: the remote.
        cache: what rows are taken into, which keeps row indexes for the next time; without one they last as
            long as this object.
        stock: what the remote has.
        contract_id: the teacher.
        without: sha256 of shards to leave out, say because their rows are here.
        indexes: the row indexes, where others share them; default: its own.

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
        indexes: RowIndexes | None = None,
    ) -> None:
        self.remote, self.cache, self.stock, self.contract_id = remote, cache, stock, contract_id
        mine = [file for file in stock.shards(contract_id) if file.sha256 not in without]
        self.shards: tuple[SharedFile, ...] = tuple(sorted(mine, key=lambda file: file.sha256))
        self._without = frozenset(without)
        self._indexes = indexes or RowIndexes(remote, cache, contract_id)

    @classmethod
    def lacking(cls, remote: Remote, cache: Cache | None, stock: Stock, contract: Contract) -> RemoteKeys:
        """Return the keys of the shards of a teacher that a cache has neither as they are nor converted.

        Args:
            remote, stock: as for the class.
            cache: the cache; None: there is none yet, and nothing in it.
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
        """Return the same, with the shards alone whose codec is one of ``names``; errors as :meth:`load`."""
        self.load()
        others = {shard.sha256 for shard in self.shards if self.header(shard).codec not in names}
        return self._derived(self.cache, self._indexes, self._without | others)

    def into(self, cache: Cache) -> RemoteKeys:
        """Return the same for taking rows into another cache; row indexes stay where they are."""
        return self._derived(cache, self._indexes, self._without)

    def kept_in(self, cache: Cache) -> RemoteKeys:
        """Return the same for a cache that is new, which keeps from now on what was fetched.

        Raises:
            RemoteError, StorageError: as :meth:`load`.
        """
        self.load()
        return self._derived(cache, self._indexes.kept_in(cache), self._without)

    def _derived(self, cache: Cache | None, indexes: RowIndexes, without: Collection[str]) -> RemoteKeys:
        return RemoteKeys(self.remote, cache, self.stock, self.contract_id, without=without, indexes=indexes)

    def bytes_to_load(self) -> int:
        """Return how much :meth:`load` would fetch, as far as the sizes of what is here tell."""
        return sum(map(self._indexes.bytes_to_fetch, self.shards))

    def whole_to_load(self) -> list[SharedFile]:
        """Return the shards that :meth:`load` would fetch whole: those without any row index."""
        return [shard for shard in self.shards if shard.index is None and self._indexes.bytes_to_fetch(shard)]

    def load(self, meter: Meter | None = None, jobs: int = JOBS) -> None:
        """Fetch all row indexes that are not here; the others are found sound.

        Args:
            meter: counts them and their bytes.
            jobs: transfers at once.

        Raises:
            RemoteError: if one cannot be had, or is refused.
            StorageError: if there is no room for them.
        """
        self._indexes.load(self.shards, meter or Meter(), jobs)

    def index(self, shard: SharedFile) -> ShardIndex:
        """Return the row index of one of :attr:`shards`, fetched where it is not here.

        Raises:
            RemoteError: if it cannot be had, or is refused.
            StorageError: if there is no room for it.
        """
        return self._indexes.index(shard)

    def header(self, shard: SharedFile) -> ShardHeader:
        """Return what one of :attr:`shards` says about itself; errors as :meth:`index`."""
        return self._indexes.header(shard)

    def codebooks_of(self, numbers: NDArray[np.int64]) -> set[str]:
        """Return the names of the codebooks of the shards with these numbers; errors as :meth:`index`."""
        headers = (self.header(self.shards[number]) for number in np.unique(numbers).tolist())
        return {header.codebook for header in headers if header.codebook is not None}

    def codebook_bytes(self, names: Iterable[str]) -> int:
        """Return how many bytes have to be fetched for the teacher's codebooks with these names."""
        files = self.stock.codebooks(self.contract_id)
        # One that no manifest lists is refused once it is needed.
        wanted = [files[name] for name in names if name in files]
        folder = None if self.cache is None else self.cache.folder
        return sum(file.bytes for file in wanted if folder is None or not (folder / file.path).is_file())

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
