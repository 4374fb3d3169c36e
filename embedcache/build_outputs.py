"""The outputs of a build: where each goes, what is missing of each, and one pass of the teacher for all."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from embedcache.build_report import BuildProgress, OnProgress, OutputSummary
from embedcache.cache import Cache
from embedcache.codecs import FLOAT_CODECS
from embedcache.corpus.corpus import Corpus
from embedcache.errors import InputError, NonFiniteVectorError
from embedcache.missing import MissingRows
from embedcache.reuse import Carried, Donor, carry_over, codec_for, donors
from embedcache.store import ShardStore, VectorBatch
from embedcache.teacher.batching import EncodedTexts
from embedcache.teacher.outputs import EMBEDDING, LOGITS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embedcache.check.progress import OnCheck
    from embedcache.share.read_through import ReadThrough
    from embedcache.teacher.encode import Encoder
    from embedcache.teacher.load import Teacher


@dataclass
class Output:
    """One output of a build.

    Attributes:
        teacher: what gives it.
        store: where it goes.
        givers: who may lend rows of it.
        kind: of a store there is none of yet; None: the usual one.
        missing: what the store lacks of the corpus and of each view that is encoded.
        absent: distinct texts that the store lacked.
        stored: those that were encoded for it.
        carried: those that were taken over.
        bytes_before: size of its shards before.
    """

    teacher: Teacher
    store: ShardStore
    givers: list[Donor]
    kind: str | None
    missing: dict[Corpus, MissingRows] = field(default_factory=dict)
    absent: int = 0
    stored: int = 0
    carried: Carried = field(default_factory=Carried)
    bytes_before: int = 0

    @classmethod
    def open(cls, cache: Cache, teacher: Teacher, codec: str | None, kind: str | None) -> Output:
        """Open the store of an output, in the codec asked for or the one that fits what is there.

        Args:
            cache: the cache.
            teacher: what gives it.
            codec: the codec asked for.
            kind: the kind of store asked for.

        Raises:
            InputError, ContractMismatchError, CorruptCacheError: as :meth:`embedcache.cache.Cache.store`.
        """
        store = cache.store(teacher.contract, codec, kind)
        givers = donors(cache, teacher.contract)
        codec = codec or codec_for(store, givers)
        if codec != store.codec_name:
            store = cache.store(teacher.contract, codec, kind)
        return cls(teacher, store, givers, kind, bytes_before=store.bytes_on_disk)

    def look_up(self, corpora: Sequence[Corpus]) -> None:
        """Find what the store lacks of ``corpora``."""
        self.missing = {texts: MissingRows.of(texts, self.store) for texts in corpora}

    def look_again(self, cache: Cache) -> None:
        """Open the store again where its shards are others than they were."""
        if not self.store.is_current:
            self.store = cache.store(self.teacher.contract, self.store.codec_name, self.kind)
            self.look_up(list(self.missing))
        self.bytes_before = self.store.bytes_on_disk

    def take_over(
        self,
        cache: Cache,
        texts: Corpus,
        shard_rows: int,
        progress: BuildProgress,
        on_progress: OnProgress | None,
    ) -> None:
        """Take over what donors have of the missing rows of ``texts``, which those then no longer are."""
        rows = self.missing[texts]
        # What views have in common with the texts before them is there by now.
        rows.refresh(self.store)
        self.absent += len(rows)
        if not len(rows) or not self.givers:
            return
        started = time.perf_counter()
        progress.begin("carry over", len(rows))

        def report(looked_up: int) -> None:
            progress.rows, progress.seconds = looked_up, time.perf_counter() - started
            if on_progress is not None:
                on_progress(progress)

        taken = carry_over(cache, self.store, rows.keys(), shard_rows, report, givers=self.givers)
        self.carried.rows += taken.rows
        self.carried.coarser_rows += taken.coarser_rows
        rows.refresh(self.store)

    def fetch(
        self, cache: Cache, texts: Corpus, encoder: Encoder, remote: ReadThrough, report: OnCheck
    ) -> None:
        """Fetch what a remote has of the missing rows of ``texts``, which those then no longer are."""
        from embedcache.check.progress import Meter
        from embedcache.share.sample import Live

        rows = self.missing[texts]
        if before := len(rows):
            live = Live(encoder, _columns(encoder, self.teacher))
            remote.fetch(cache, self.store, rows.keys(), [texts], lambda: live, Meter(report))
            rows.refresh(self.store)
            remote.rows += before - len(rows)

    def summary(self) -> OutputSummary:
        """Return what the build did about it."""
        contract = self.teacher.contract
        distinct = sum(rows.distinct for rows in self.missing.values())
        return OutputSummary(
            output=contract.output,
            teacher=self.teacher.name,
            contract_id=contract.id,
            stored=self.stored,
            carried=self.carried.rows,
            reused=distinct - self.absent,
        )


def teachers_of(teacher: Teacher, outputs: Sequence[str]) -> list[Teacher]:
    """Return what gives each of ``outputs``, all of them on the model of ``teacher``.

    Raises:
        TeacherError, CorruptCacheError: as :func:`embedcache.teacher.load.logits_teacher`.
    """
    if LOGITS not in outputs:
        return [teacher]
    from embedcache.teacher.load import logits_teacher

    logits = logits_teacher(teacher)
    return [teacher, logits] if EMBEDDING in outputs else [logits]


def codec_of(output: str, asked: str | None, *, alone: bool) -> str | None:
    """Return the codec of an output where ``asked`` is what the user wants for all of them.

    Logits are kept as floats: of two labels int8 takes more room than float16 (6 bytes a row, not 4), and of
    three to twenty it moves a probability by up to 0.02, where float16 moves it by 0.002.

    Args:
        output: the output.
        asked: a codec's name; None: the usual one.
        alone: whether it is the only output.

    Raises:
        InputError: if logits alone are wanted in a codec that is not kept for them.
    """
    if output != LOGITS or asked is None or asked in FLOAT_CODECS:
        return asked
    if alone:
        raise InputError(
            f"--codec {asked}: logits are a few numbers a row and are kept as floats: leave --codec out, or "
            f"give {' or '.join(FLOAT_CODECS)}"
        )
    return None


def groups(outputs: Sequence[Output], texts: Corpus) -> list[tuple[list[Output], MissingRows]]:
    """Return the missing rows of ``texts``, first those of all outputs, and the outputs that lack them."""
    masks = [output.missing[texts].mask for output in outputs]
    everywhere = np.logical_and.reduce(masks)
    found = [(list(outputs), replace(outputs[0].missing[texts], mask=everywhere))]
    if len(outputs) > 1:
        for output, mask in zip(outputs, masks, strict=True):
            found.append(([output], replace(output.missing[texts], mask=mask & ~everywhere)))
    return [(wanting, rows) for wanting, rows in found if len(rows)]


def encode_missing(
    corpus: Corpus,
    missing: MissingRows,
    outputs: Sequence[Output],
    encoder: Encoder,
    shard_rows: int,
    progress: BuildProgress,
    on_progress: OnProgress | None,
) -> int:
    """Encode missing rows, store them for each of ``outputs``, and return how many texts were truncated."""
    rows_before, tokens_before = encoder.times.rows, encoder.times.tokens
    started = time.perf_counter()
    progress.begin("encode", len(missing))
    truncated = 0
    taken: deque[NDArray[np.int64]] = deque()

    def texts_of_windows() -> Iterator[list[str]]:
        for rows in missing.windows(shard_rows):
            began = time.perf_counter()
            texts = corpus.texts(rows)
            progress.busy["read"] += time.perf_counter() - began
            taken.append(rows)
            yield texts

    def report() -> None:
        progress.rows = encoder.times.rows - rows_before
        progress.tokens = encoder.times.tokens - tokens_before
        progress.seconds = time.perf_counter() - started
        progress.busy["tokenise"] = encoder.times.tokenise
        # Forward passes run on several streams at once; what counts is the time they take together.
        progress.busy["encode"] = encoder.times.forward / encoder.streams
        if on_progress is not None:
            on_progress(progress)

    # Closed at once where storing fails: the windows worked on ahead would keep the process from ending.
    with closing(encoder.encode_windows(texts_of_windows(), report)) as results:
        for encoded in results:
            rows = taken.popleft()
            _refuse_non_finite(encoded, corpus, rows)
            began = time.perf_counter()
            keys = missing.keys(rows)
            for output in outputs:
                vectors = np.ascontiguousarray(encoded.vectors[:, _columns(encoder, output.teacher)])
                output.store.put(
                    VectorBatch(keys, vectors, encoded.tokens, encoded.truncated, encoder.provenance)
                )
                output.stored += len(rows)
            progress.busy["write"] += time.perf_counter() - began
            truncated += int(encoded.truncated.sum())
            report()
    return truncated


def _columns(encoder: Encoder, teacher: Teacher) -> slice:
    """Return where in an encoder's rows the output of one of its teachers stands."""
    before = 0
    for one in encoder.teachers:
        if one.contract == teacher.contract:
            break
        before += one.dimension
    return slice(before, before + teacher.dimension)


def _refuse_non_finite(encoded: EncodedTexts, corpus: Corpus, rows: NDArray[np.int64]) -> None:
    bad = np.flatnonzero(~np.isfinite(encoded.vectors).all(axis=1))
    if len(bad):
        row = rows[bad[:1]]
        raise NonFiniteVectorError(
            f"the teacher returned NaN or infinity for row {row[0]} of {corpus.title} "
            f"({corpus.texts(row)[0][:80]!r}) and {len(bad) - 1} more rows of its shard; what was "
            "stored before is kept. Try --compute-dtype float32, or take the text out of the corpus"
        )
