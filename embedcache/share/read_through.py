"""Read-through of a build: fetch the shards of a remote that hold missing rows, in place of encoding them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.check.progress import Meter
from embedcache.codecs import CODEC_NAMES
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.keys import KeyArray
from embedcache.share.files import missing_files
from embedcache.share.incoming import Incoming
from embedcache.share.manifest import Stock
from embedcache.share.pull import counted_stock, refuse_too_much
from embedcache.share.remote import Remote
from embedcache.share.rows import RemoteKeys
from embedcache.share.sample import Live, SampleCheck, compare

if TYPE_CHECKING:
    from embedcache.store import ShardStore


@dataclass(frozen=True)
class RemoteOptions:
    """Remote that a build fetches from, and its limits.

    Attributes:
        remote: name or URL.
        max_bytes: refuse to fetch more than this.
        require_signature: file of public ed25519 keys; only manifests that one of them signed count.
        skip_manifests: beginnings of digests of manifests that do not count.
    """

    remote: str
    max_bytes: int | None = None
    require_signature: str | Path | None = None
    skip_manifests: Sequence[str] = ()


@dataclass
class ReadThrough:
    """A remote that a build fetches rows from.

    Attributes:
        options: which remote, and how.
        source: the remote.
        rows: missing rows that came.
        bytes: bytes that came.
        samples: comparisons with the live teacher.
    """

    options: RemoteOptions
    source: Remote
    rows: int = 0
    bytes: int = 0
    samples: list[SampleCheck] = field(default_factory=list)
    _stock: Stock | None = None

    @classmethod
    def open(cls, options: RemoteOptions | str) -> ReadThrough:
        """Open a remote.

        Raises:
            InputError, RemoteError: as :func:`embedcache.share.pull`.
        """
        given = RemoteOptions(options) if isinstance(options, str) else options
        return cls(given, Remote(given.remote).open())

    def keys(self, cache: Cache, contract: Contract, codec: str) -> RemoteKeys:
        """Return the keys of the shards that are at least as fine as ``codec``; they are downloaded once.

        Raises:
            RemoteError, StorageError: if they cannot be had.
        """
        stock = self._listed(cache)
        finest = CODEC_NAMES[: CODEC_NAMES.index(codec) + 1]
        shards = [shard for shard in stock.shards(contract.id) if shard.codec in finest]
        keys = RemoteKeys(cache, self.source, shards)
        refuse_too_much(cache.folder, (), self.options.max_bytes, self.bytes + keys.missing_bytes)
        return keys

    def fetch(
        self,
        cache: Cache,
        store: ShardStore,
        keys: KeyArray,
        corpora: Sequence[Corpus],
        live: Callable[[], Live],
        meter: Meter,
    ) -> None:
        """Fetch the shards that hold vectors of ``keys``; they are compared with the teacher, then admitted.

        Args:
            cache: the cache.
            store: the store of the teacher's vectors, which has the new shards afterwards.
            keys: the missing rows.
            corpora: have their texts.
            live: gives the live teacher.
            meter: counts what is downloaded.

        Raises:
            InputError: if that is more than ``max_bytes``.
            RemoteError: if a shard cannot be fetched, or its vectors are not the teacher's.
            StorageError: if there is no room.
        """
        contract = store.contract
        remote_keys = self.keys(cache, contract, store.codec_name)
        shards = missing_files(cache, remote_keys.shards_with(keys))
        if not shards:
            return
        stock = self._listed(cache)
        incoming = Incoming(cache, self.source, stock, meter)
        books = [file for file in stock.files() if file.entry.kind is Kind.CODEBOOK]
        needs_book = any(shard.codec == "pq" for shard in shards)
        files = [*shards, *(one for one in books if needs_book and one.entry.teacher == contract.id)]
        refuse_too_much(cache.folder, files, self.options.max_bytes, self.bytes)
        with incoming.locked(files):
            incoming.fetch("fetch", files)
            came = incoming.open_store(contract, files)
            sample = compare(came, store, incoming.teacher(contract.id), corpora, live, meter=meter)
            if sample.is_bad:
                digests = [file.sha256 for file in shards]
                raise incoming.refusal(digests, f"{self.source.url}: {sample.message}")
            incoming.admit(files)
        self.samples.append(sample)
        self.bytes += sum(file.bytes for file in files)
        store.open_new()

    def _listed(self, cache: Cache) -> Stock:
        if self._stock is None:
            given = self.options
            self._stock = counted_stock(self.source, cache, given.require_signature, given.skip_manifests)
        return self._stock
