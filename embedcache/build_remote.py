"""What a build reads through to: rows that teammates have encoded are fetched from a remote."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.build_report import BuildProgress, OnProgress, RemoteSummary
from embedcache.cache import Cache
from embedcache.check.progress import CheckProgress, Meter
from embedcache.check.verify.deep import BAD, LEAST_SAMPLE, LOOK, compare_vectors, worst_line
from embedcache.codecs import CODEC_NAMES, Vectors, pq
from embedcache.errors import RemoteError
from embedcache.keys import KeyArray, key_array
from embedcache.share.manifest import Stock
from embedcache.share.pull_plan import refuse_too_much
from embedcache.share.remote import Remote
from embedcache.share.remote_keys import RemoteKeys
from embedcache.share.remotes import location_of
from embedcache.share.same_model import same_model_notes
from embedcache.share.sample import note_sampled, sampled_before
from embedcache.share.sign import PublicKey, signed_manifests
from embedcache.share.take_rows import TakenRows, take_rows
from embedcache.teacher.encoded import EncodeTimes

if TYPE_CHECKING:
    from embedcache.contract import Contract
    from embedcache.store import ShardStore
    from embedcache.teacher.encode import Encoder

SAMPLE = 32
"""Texts that are encoded to see that the rows of a remote are the teacher's."""

Encode = Callable[[Sequence[str]], Vectors]
"""Returns the live teacher's vectors of texts."""


@dataclass(frozen=True)
class RemoteOptions:
    """A remote to read through to.

    Attributes:
        remote: its name or URL.
        require_signature: file of a public ed25519 key; only manifests that it signed are looked at.
        skip_manifests: leave out those manifests whose names begin so.
        sample_check: whether a sample of each teacher that comes from there for the first time is compared
            with the live teacher.
        max_bytes: refuse to fetch more than this.
    """

    remote: str
    require_signature: str | Path | None = None
    skip_manifests: Collection[str] = ()
    sample_check: bool = True
    max_bytes: int | None = None


@dataclass
class RemoteRows:
    """The use that one build makes of a remote.

    Attributes:
        remote: the remote.
        stock: what it has.
        sample_check: whether to compare a sample.
        meter: counts what is fetched.
        taken: what was taken, one after the other.
        unworthy: rows that were left, because their codec keeps less.
        texts_saved: texts that the teacher need not read.
        checked: texts encoded for comparisons.
        seconds: what all of that took.
        sample_rate: texts a second in those comparisons.
        told: what is worth telling.
        max_bytes: how much may be fetched, all together.
    """

    remote: Remote
    stock: Stock
    sample_check: bool
    meter: Meter
    taken: list[TakenRows] = field(default_factory=list)
    unworthy: int = 0
    texts_saved: int = 0
    checked: int = 0
    seconds: float = 0.0
    sample_rate: float = 0.0
    told: list[str] = field(default_factory=list)
    max_bytes: int | None = None

    @classmethod
    def open(
        cls,
        options: RemoteOptions,
        cache: Cache | None,
        progress: BuildProgress,
        on_progress: OnProgress | None,
    ) -> RemoteRows:
        """Look at what a remote has.

        Args:
            options: which remote, and what of it.
            cache: keeps copies of what is read; None where there is none yet.
            progress: kept up to date.
            on_progress: called with it.

        Raises:
            InputError: if there is no remote of that name, or a key cannot be used.
            RemoteError: if it cannot be reached, or what lies there is refused.
        """
        started = time.perf_counter()
        key = None if options.require_signature is None else PublicKey.load(Path(options.require_signature))
        remote = Remote(location_of(options.remote))
        meter = Meter(_passed_on(progress, on_progress))
        meter.begin("read the remote")
        remote.require()
        only = None if key is None else signed_manifests(remote, key)
        stock = Stock(remote.manifests(cache, only, options.skip_manifests))
        seconds = time.perf_counter() - started
        return cls(remote, stock, options.sample_check, meter, seconds=seconds, max_bytes=options.max_bytes)

    def refuse_too_much(self, cache: Cache, size: int) -> None:
        """See that so many bytes more may be fetched into ``cache``, and have room.

        Raises:
            InputError: if they are too many.
            StorageError: if the disk has no room for them.
        """
        refuse_too_much(cache.folder, self.meter.bytes + size, self.max_bytes, "build without --remote")

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Count the seconds of the block."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - started

    def lender(self, cache: Cache, store: ShardStore) -> Lender:
        """Return what the remote can lend to a store of ``cache``; its row indexes are fetched.

        Raises:
            InputError, StorageError: if they are too much, or have no room.
            RemoteError: if one cannot be had, or is refused.
        """
        with self.timed():
            # Of a shard that is here nothing is missing.
            keys = RemoteKeys(
                self.remote, cache, self.stock, store.contract.id, without=store.container.names()
            )
            self.refuse_too_much(cache, keys.bytes_to_load())
            keys.load(self.meter)
            if not keys.shards:
                self.told += same_model_notes(self.remote, self.stock, store.contract)
        if whole := len(keys.fetched_whole):
            self.told.append(
                f"{whole:,} shards of {self.remote.where} have no row index and were fetched whole to read "
                "their keys: 'embedcache push' from a cache that has them adds it"
            )
        return Lender(self, cache, keys)

    def summary(self, encoded: int, encode_seconds: float) -> RemoteSummary:
        """Return what was taken.

        Args:
            encoded: texts that the build has encoded.
            encode_seconds: what that took.
        """
        rate = encoded / encode_seconds if encoded and encode_seconds else self.sample_rate
        rows = sum(one.rows for one in self.taken)
        if unranged := sum(one.unranged_shards for one in self.taken):
            self.told.append(
                f"{unranged:,} shards were fetched whole for some of their rows, because "
                f"{self.remote.where} gives no parts of files"
            )
        return RemoteSummary(
            remote=self.remote.where,
            rows=rows,
            bytes=self.meter.bytes,
            whole_shards=sum(one.whole_shards for one in self.taken),
            unworthy=self.unworthy,
            texts_saved=self.texts_saved,
            checked=self.checked,
            seconds=self.seconds,
            encode_seconds_saved=self.texts_saved / rate if rate else None,
            told=list(self.told),
        )


@dataclass
class Lender:
    """What a remote can lend to one store.

    Attributes:
        source: the use that the build makes of the remote.
        cache: the cache the store is of.
        keys: all that the remote has of the store's teacher.
        worthy: that of it which is kept as well as encoding anew would.
    """

    source: RemoteRows
    cache: Cache
    keys: RemoteKeys
    worthy: RemoteKeys = field(init=False)
    _codec: str | None = field(init=False, default=None)
    _is_sampled: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Take everything for worthy until a codec is chosen."""
        self.worthy = self.keys

    @property
    def codec(self) -> str | None:
        """The codec of most of its rows; None where there are none."""
        rows = dict.fromkeys(CODEC_NAMES, 0)
        for shard in self.keys.shards:
            rows[self.keys.header(shard).codec] += shard.rows
        return max(rows, key=lambda name: rows[name]) if any(rows.values()) else None

    def narrow(self, codec: str) -> None:
        """Lend to a store of ``codec`` alone: rows of the same one, and those that keep every bit.

        Rows that a codec has taken something from would lose twice, and are encoded instead. A codebook is
        trained on what is encoded, and takes no other rows in.
        """
        lent = {codec} if codec == pq.NAME else {codec, "float32"}
        self.worthy = self.keys.of_codecs(lent)
        self._codec = None if codec == pq.NAME else codec

    def lend(
        self,
        store: ShardStore,
        keys: KeyArray,
        shard_rows: int,
        texts_of: Callable[[NDArray[np.int64]], Sequence[str]],
        encode: Encode,
        compute_dtype: str,
    ) -> int:
        """Bring those of ``keys`` that the remote has into ``store``; return how many.

        Args:
            store: where they go.
            keys: distinct keys that it lacks.
            shard_rows: rows of a shard made of rows that come alone.
            texts_of: returns the texts of some of ``keys``, by their numbers.
            encode: the live teacher.
            compute_dtype: what it computes in.

        Raises:
            InputError: if more would have to be fetched than may be.
            RemoteError: if something cannot be had, or is refused, or is not what the teacher returns.
            StorageError: if the cache cannot be written.
        """
        with self.source.timed():
            if self.source.sample_check and not self._is_sampled:
                self._check_sample(store.contract, keys, texts_of, encode, compute_dtype)
            found = take_rows(
                store,
                self.worthy,
                keys,
                codec=self._codec,
                shard_rows=shard_rows,
                meter=self.source.meter,
                on_plan=lambda plan: self.source.refuse_too_much(self.cache, plan.bytes),
            )
            self.source.taken.append(found)
            if len(self.worthy.shards) < len(self.keys.shards):
                left = keys[store.locate(keys) < 0]
                self.source.unworthy += int((self.keys.locate(left)[0] >= 0).sum())
        return found.rows

    def _check_sample(
        self,
        contract: Contract,
        keys: KeyArray,
        texts_of: Callable[[NDArray[np.int64]], Sequence[str]],
        encode: Encode,
        compute_dtype: str,
    ) -> None:
        """Compare some rows with the live teacher's, before any of them enters the cache."""
        remote = self.source.remote
        # What a pull found bad, and told, is not taken on its word either.
        if sampled_before(self.cache, remote).get(contract.id, BAD) != BAD:
            self._is_sampled = True
            return
        there = np.flatnonzero(self.worthy.locate(keys)[0] >= 0)
        if len(there) < LEAST_SAMPLE:
            if len(there):
                self.source.told.append(
                    f"{len(there):,} rows are too few to compare with the live teacher: 'embedcache verify "
                    "--deep' compares later"
                )
            return
        chosen = there[np.linspace(0, len(there) - 1, min(SAMPLE, len(there))).astype(np.int64)]
        texts = list(texts_of(chosen))
        self.source.meter.begin("compare with the live teacher", total_rows=len(texts))
        started = time.perf_counter()
        live = encode(texts)
        again = _in_other_batches(encode, texts)
        self.source.sample_rate = 2 * len(texts) / max(time.perf_counter() - started, 1e-9)
        self.source.checked += len(texts)
        self._is_sampled = True
        with TemporaryDirectory(prefix="embedcache-sample-") as scratch:
            aside = Cache.create(Path(scratch, "cache"))
            aside.register_teacher("sample", contract, {})
            store = aside.store(contract)
            take_rows(store, self.worthy.into(aside), keys[chosen], meter=self.source.meter)
            positions = store.locate(key_array(texts))
            line = worst_line(compare_vectors(store, positions, live, again, compute_dtype))
        if line.verdict == BAD:
            raise RemoteError(
                f"the vectors that {remote.where} has under this teacher's contract are not the teacher's "
                f"({line.measure}: {line.stored:.2g} of {len(texts)} texts, the teacher itself "
                f"{line.noise:.2g}): none were taken; build without --remote, or take what one key has "
                "signed with --require-signature"
            )
        if line.verdict == LOOK:
            self.source.told.append(
                f"{line.measure} of the remote's vectors {line.stored:.2g}: {line.meaning}"
            )
        note_sampled(self.cache, remote, {contract.id: line.verdict})


def encoded_aside(encoder: Encoder, columns: slice) -> Encode:
    """Return what encodes texts without counting them among the build's.

    Args:
        encoder: the encoder of the build.
        columns: where in its rows the wanted output stands.
    """

    def encode(texts: Sequence[str]) -> Vectors:
        counted, encoder.times = encoder.times, EncodeTimes()
        try:
            return np.ascontiguousarray(encoder.encode(texts).vectors[:, columns])
        finally:
            encoder.times = counted

    return encode


def _in_other_batches(encode: Encode, texts: Sequence[str]) -> Vectors:
    order = np.random.default_rng(0).permutation(len(texts))
    parts = np.array_split(order, 3)
    shuffled = np.concatenate([encode([texts[i] for i in part]) for part in parts])
    vectors = np.empty_like(shuffled)
    vectors[order] = shuffled
    return vectors


def _passed_on(progress: BuildProgress, on_progress: OnProgress | None) -> Callable[[CheckProgress], None]:
    def report(state: CheckProgress) -> None:
        counts = (state.bytes, state.total_bytes) if state.total_bytes else (state.rows, state.total_rows)
        progress.phase = f"remote: {state.phase}"
        progress.rows, progress.total = counts
        progress.seconds = state.seconds
        if on_progress is not None:
            on_progress(progress)

    return report
