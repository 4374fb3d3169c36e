"""Rows that one store of a build takes from a remote: planned, compared with the live teacher, fetched."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.check.verify.deep import (
    BAD,
    LEAST_SAMPLE,
    LOOK,
    DeepLine,
    compare_vectors,
    in_other_batches,
    worst_line,
)
from embedcache.codecs import CODEC_NAMES, DEFAULT_CODEC, FLOAT_CODECS, Vectors, pq
from embedcache.errors import InputError, RemoteError
from embedcache.fsio import TEMPORARY_PREFIX, make_directory
from embedcache.key_index import KeyIndex
from embedcache.keys import KeyArray, key_array
from embedcache.sample_notes import SampleNotes
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.pulling.sample import note_sampled, sampled_before
from embedcache.share.pulling.take_rows import RowsPlan, plan_rows, take_rows
from embedcache.share.pulling.wanted import Wanted
from embedcache.share.remote.same_model import same_model_notes
from embedcache.share.rows.remote_keys import RemoteKeys
from embedcache.share.rows.whole_fetches import no_index_notes
from embedcache.teacher.encoded import EncodeTimes

if TYPE_CHECKING:
    from embedcache.build_remote import RemoteRows
    from embedcache.contract import Contract
    from embedcache.store import ShardStore
    from embedcache.teacher.encode import Encoder

SAMPLE = 32
"""Texts that are encoded to see that the rows of a remote are the teacher's."""
SAMPLE_RUNS = 8
"""The sample consists of so many runs of neighbouring rows: each row apart would cost a block of its shard.

A few rows are enough to tell another teacher's shard, so more runs look into more shards. Eight runs fetch a
third to two thirds more than the 100 kB of four, rows apart would fetch five times as much.
"""

Encode = Callable[[Sequence[str]], Vectors]
"""Returns the live teacher's vectors of texts."""


@dataclass(frozen=True)
class Loan:
    """The rows that one store is about to take from a remote.

    Attributes:
        rows: the plan to fetch them.
        coarser_rows: how many of the other rows it has in a codec that keeps less than encoding them would.
    """

    rows: RowsPlan
    coarser_rows: int


@dataclass
class Lender:
    """A remote that can lend rows to one store of a build.

    Attributes:
        source: the remote, as the build uses it.
        folder: the folder of the store's cache.
        cache: that cache; None where there is none yet.
        keys: keys of all rows that the remote has of the store's teacher.
        usable: those of them whose codec keeps as much as encoding anew would.
    """

    source: RemoteRows
    folder: Path
    cache: Cache | None
    keys: RemoteKeys
    usable: RemoteKeys = field(init=False)
    _codec: str | None = field(init=False, default=None)
    _is_sampled: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        """Take all rows for usable until a codec is chosen."""
        self.usable = self.keys

    @classmethod
    def open(cls, source: RemoteRows, folder: Path, cache: Cache | None, contract: Contract) -> Lender:
        """Return a lender for a store; the row indexes of its teacher are fetched.

        Args:
            source: the remote, as the build uses it.
            folder: where the cache is, or will be.
            cache: the store's cache, which keeps row indexes; None: there is none yet.
            contract: the store's teacher.

        Raises:
            InputError, StorageError: if the row indexes are too large, or have no room.
            RemoteError: if a row index cannot be had, or is refused.
        """
        with source.timed():
            keys = RemoteKeys.lacking(source.remote, cache, source.stock, contract)
            source.tell(no_index_notes([keys]))
            source.refuse_too_much(folder, keys.bytes_to_load())
            keys.load(source.meter)
            if not keys.shards:
                source.tell(same_model_notes(source.remote, source.stock, contract, source.allowance))
        return cls(source, folder, cache, keys)

    @classmethod
    def open_for_new(cls, source: RemoteRows, folder: Path, contract: Contract, codec: str | None) -> Lender:
        """Return a lender for a store of a cache that is not there yet.

        Args:
            source, folder, contract: as for :meth:`open`.
            codec: the codec asked for; None: that of most rows of the remote.

        Raises:
            InputError: if no codec is asked for, and that of the remote loses precision; or as :meth:`open`.
            StorageError, RemoteError: as :meth:`open`.
        """
        lender = cls.open(source, folder, None, contract)
        if codec is None:
            lender.own_codec()
        return lender

    @property
    def _home(self) -> Cache:
        if self.cache is None:
            raise ValueError("nothing is lent before there is a cache: settle it")
        return self.cache

    def settle(self, cache: Cache) -> None:
        """Let ``cache``, which was just made, keep the row indexes."""
        self.keys = self.usable = self.keys.kept_in(cache)
        self.cache = cache

    def own_codec(self) -> str | None:
        """Return the codec of most rows of the remote, for a store that has none; None if it has no rows.

        Raises:
            InputError: if that codec loses precision: nobody gets such vectors unasked.
        """
        rows = dict.fromkeys(CODEC_NAMES, 0)
        for shard in self.keys.shards:
            rows[self.keys.header(shard).codec] += shard.rows
        if not any(rows.values()):
            return None
        codec = max(rows, key=lambda name: rows[name])
        if codec not in FLOAT_CODECS:
            raise InputError(
                f"{rows[codec]:,} of {sum(rows.values()):,} rows that {self.source.remote.where} has of this "
                f"teacher are stored as {codec}, which keeps less than the teacher gives: take them so with "
                f"--codec {codec}, or have their texts encoded with --codec {DEFAULT_CODEC}"
            )
        return codec

    def narrow(self, codec: str) -> None:
        """Lend only rows that a store of ``codec`` can take: those of the same codec, and ``float32`` rows.

        Rows of other codecs would lose precision twice; their texts are encoded instead. The codebook of
        ``pq`` is trained on encoded rows, so a store of ``pq`` takes no ``float32`` rows.
        """
        lent = {codec} if codec == pq.NAME else {codec, "float32"}
        self.usable = self.keys.of_codecs(lent)
        self._codec = None if codec == pq.NAME else codec

    def plan(self, store: ShardStore, keys: KeyArray) -> Loan:
        """Find which rows ``store`` would take.

        Args:
            store: the store.
            keys: the keys that it lacks.

        Raises:
            RemoteError: if a row index cannot be had, or is refused.
        """
        rows = plan_rows(store, self.usable, keys, codec=self._codec, meter=self.source.meter)
        coarser_rows = 0
        if len(self.usable.shards) < len(self.keys.shards):
            coming = KeyIndex(rows.keys).locate(keys) >= 0
            left = keys[(store.locate(keys) < 0) & ~coming]
            coarser_rows = int((self.keys.locate(left)[0] >= 0).sum())
        return Loan(rows, coarser_rows)

    def lend(
        self,
        store: ShardStore,
        keys: KeyArray,
        shard_rows: int,
        texts_of: Callable[[NDArray[np.int64]], Sequence[str]],
        encode: Encode,
        compute_dtype: str,
    ) -> int:
        """Fetch the rows of ``keys`` that the remote has into ``store``; return how many.

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
            if self.source.options.sample_check and not self._is_sampled:
                self._check_sample(store.contract, keys, texts_of, encode, compute_dtype)
            loan = self.plan(store, keys)
            self.source.refuse_too_much(self.folder, loan.rows.bytes)
            taken = take_rows(
                store,
                self.usable,
                loan.rows,
                shard_rows=shard_rows,
                meter=self.source.meter,
                check_size=partial(self.source.refuse_whole_shards, self.folder),
            )
            self.source.taken.append(taken)
            self.source.coarser_rows += loan.coarser_rows
        return taken.rows

    def lend_codebook(self, store: ShardStore) -> None:
        """Have ``store``, if it has no codebook yet, keep new rows with that of most rows of the remote.

        Args:
            store: a store whose rows are too few to learn one from.

        Raises:
            InputError: if more would have to be fetched than may be.
            RemoteError: if it cannot be had, or is refused.
            StorageError: if the cache cannot be written.
        """
        source, contract = self.source, store.contract
        books = source.codebooks(contract)
        if not (store.needs_codebook and books):
            return
        with source.timed():
            rows = dict.fromkeys(sorted(books), 0)
            for shard in self.keys.shards:
                if (name := self.keys.header(shard).codebook) in rows:
                    rows[name] += shard.rows
            book = books[max(rows, key=lambda name: rows[name])]
            arrivals = Arrivals(
                source.remote,
                self._home,
                contracts={contract.id: contract},
                codebooks=books,
                meter=source.meter,
            )
            if not arrivals.has(wanted := Wanted(book, book.path)):
                source.refuse_too_much(self.folder, book.bytes)
                source.meter.begin("fetch the codebook", total_files=1, total_bytes=book.bytes)
                arrivals.fetch(wanted)
            codec = pq.load(self._home.teacher_folder(contract) / "codebooks", book.sha256)
            parts = pq.stored_width(contract.dimension)
            if (codec.dimension, len(codec.centroids)) != (contract.dimension, parts):
                raise RemoteError(
                    f"the codebook {book.sha256[:12]} that {source.remote.where} has of this teacher is for "
                    f"vectors of width {codec.dimension} in {len(codec.centroids)} parts, not "
                    f"{contract.dimension} in {parts}: it is damaged or hostile; build without --remote, or "
                    "with --codec float16"
                )
            store.use_codebook(codec)
            source.tell(
                [f"too few texts to learn a codebook of pq from: that of {source.remote.where} is taken"]
            )

    def _check_sample(
        self,
        contract: Contract,
        keys: KeyArray,
        texts_of: Callable[[NDArray[np.int64]], Sequence[str]],
        encode: Encode,
        compute_dtype: str,
    ) -> None:
        """Compare some rows with the live teacher's, before any of them enters the cache."""
        # Vectors that a pull found bad are compared again.
        if sampled_before(self._home, self.source.remote, contract.id) not in ("", BAD):
            self._is_sampled = True
            return
        drawn = self._draw_sample(keys)
        if not len(drawn):
            return
        texts = list(texts_of(drawn))
        line = self._compare_sample(contract, keys[drawn], texts, encode, compute_dtype)
        self._is_sampled = True
        self._judge_sample(contract, line, len(texts))

    def _draw_sample(self, keys: KeyArray) -> NDArray[np.int64]:
        """Return the numbers of the keys whose rows are compared; none where the remote has too few."""
        shards, rows = self.usable.locate(keys, self._codec)
        on_remote = np.flatnonzero(shards >= 0)
        if len(on_remote) < LEAST_SAMPLE:
            if len(on_remote):
                self.source.told.append(
                    f"{len(on_remote):,} rows are too few to compare with the live teacher: 'embedcache "
                    "verify --deep' compares later"
                )
            return on_remote[:0]
        in_stored_order = on_remote[np.lexsort((rows[on_remote], shards[on_remote]))]
        seed = SampleNotes(self._home, self.source.remote.id).secret_number()
        return in_stored_order[sample_places(len(in_stored_order), seed)]

    def _compare_sample(
        self, contract: Contract, keys: KeyArray, texts: list[str], encode: Encode, compute_dtype: str
    ) -> DeepLine:
        """Encode ``texts`` and fetch their rows; return the measure in which the two differ most."""
        source = self.source
        source.meter.begin("compare with the live teacher", total_rows=len(texts))
        started = time.perf_counter()
        live = encode(texts)
        again = in_other_batches(encode, texts)
        source.sample_rate = 2 * len(texts) / max(time.perf_counter() - started, 1e-9)
        source.checked += len(texts)
        # A cache of their own, for nothing enters the build's before it was compared; beside its files, for
        # there is room for whole shards.
        beside = make_directory(self._home.derived_folder / "remotes" / source.remote.id)
        with TemporaryDirectory(prefix=f"{TEMPORARY_PREFIX}sample-", dir=beside) as scratch:
            aside = Cache.create(Path(scratch, "cache"))
            aside.register_teacher("sample", contract, {})
            store = aside.store(contract)
            remote_keys = self.usable.into(aside)
            plan = plan_rows(store, remote_keys, keys, codec=self._codec)
            source.refuse_too_much(self.folder, plan.bytes)
            check_size = partial(source.refuse_whole_shards, self.folder)
            take_rows(store, remote_keys, plan, meter=source.meter, check_size=check_size)
            positions = store.locate(key_array(texts))
            return worst_line(compare_vectors(store, positions, live, again, compute_dtype))

    def _judge_sample(self, contract: Contract, line: DeepLine, texts: int) -> None:
        """Note the verdict of a comparison.

        Raises:
            RemoteError: if the vectors are not the teacher's.
        """
        remote = self.source.remote
        if line.verdict == BAD:
            raise RemoteError(
                f"the vectors that {remote.where} has under this teacher's contract are not the teacher's "
                f"({line.measure}: {line.stored:.2g} of {texts} texts, the teacher itself "
                f"{line.noise:.2g}): none were taken; build without --remote, leave the push that "
                "brought them out with --skip-manifest ('embedcache remote ls' shows all), or take what one "
                "key has signed with --require-signature"
            )
        if line.verdict == LOOK:
            self.source.told.append(
                f"{line.measure} of the remote's vectors {line.stored:.2g}: {line.meaning}"
            )
        note_sampled(self._home, remote, contract.id, line.verdict)


def sample_places(rows: int, seed: int) -> NDArray[np.int64]:
    """Return which of ``rows`` rows, in the order in which they stand on a remote, are compared.

    Runs of neighbours, as each is read at once, one in each of parts of the same size.

    Args:
        rows: how many rows there are.
        seed: says where in its part each run is; whoever has pushed the rows must not know it.
    """
    if rows <= SAMPLE:
        return np.arange(rows)
    length, part = SAMPLE // SAMPLE_RUNS, rows / SAMPLE_RUNS
    within = np.random.default_rng(seed).random(SAMPLE_RUNS)
    starts = (part * np.arange(SAMPLE_RUNS) + within * (part - length)).astype(np.int64)
    return (starts[:, None] + np.arange(length)).ravel()


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
