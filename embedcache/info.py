"""Figures of a cache: its corpora and teachers, in one line each or in full."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from embedcache.cache import Cache, CachedTeacher
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.description import VIEWS, read_record
from embedcache.corpus.origin import read_note
from embedcache.corpus.part import ORIGINAL
from embedcache.errors import CorruptCacheError, InputError
from embedcache.keys import first_occurrences
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.store import Shard, ShardStore
from embedcache.teacher.token_table import table_path

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

MOST_LABELS = 20
"""Labels that are listed, the commonest first."""


@dataclass(frozen=True)
class CorpusLine:
    """Corpus in one line; ``digest`` is the first 12 digits, ``labels`` whether rows have labels."""

    name: str
    rows: int
    digest: str
    labels: bool
    views: int

    @classmethod
    def of(cls, corpus: Corpus) -> CorpusLine:
        """Summarize a corpus."""
        info = corpus.info
        return cls(corpus.name, len(corpus), info.digest[:12], info.has_labels, len(corpus.view_names()))


@dataclass(frozen=True)
class TeacherLine:
    """Teacher in one line.

    Attributes:
        name: its name.
        contract: first 12 digits of its contract's id.
        vectors: distinct texts with a vector; None if the store is damaged, as ``codec`` and ``bytes``.
        width: components of a vector.
        codec: codec of new vectors.
        store: ``arrow``, ``lmdb``, or ``damaged``.
        bytes: size of the shards.
        pooling, max_length: of the contract.
        token_embeddings: size of its table of token embeddings; None without one.
        damage: the error of a damaged store.
    """

    name: str
    contract: str
    vectors: int | None
    width: int
    codec: str | None
    store: str
    bytes: int | None
    pooling: str
    max_length: int
    token_embeddings: int | None
    damage: str | None

    @classmethod
    def of(cls, cache: Cache, teacher: CachedTeacher) -> TeacherLine:
        """Summarize a teacher; a damaged store is reported in it, so that others are still listed."""
        contract, table = teacher.contract, table_path(cache.folder, teacher.contract)
        vectors, codec, kind, size, damage = None, None, "damaged", None, None
        try:
            store = cache.store(contract)
            vectors, codec, kind, size = len(store), store.codec_name, store.kind, store.bytes_on_disk
        except CorruptCacheError as error:
            damage = str(error)
        return cls(
            name=teacher.name,
            contract=contract.id[:12],
            vectors=vectors,
            width=contract.dimension,
            codec=codec,
            store=kind,
            bytes=size,
            pooling=contract.pooling,
            max_length=contract.max_length,
            token_embeddings=table.stat().st_size if table.is_file() else None,
            damage=damage,
        )


@dataclass(frozen=True)
class Spread:
    """Distribution of whole numbers; ``median`` and ``p95`` are numbers that occur."""

    least: int
    median: int
    mean: float
    p95: int
    most: int

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> Spread | None:
        """Return the distribution of numbers given as number -> count; None without numbers."""
        if not counts:
            return None
        numbers = np.array(sorted(counts))
        weights = np.array([counts[number] for number in numbers.tolist()])
        upto = np.cumsum(weights)
        median, p95 = (int(numbers[np.searchsorted(upto, share * upto[-1])]) for share in (0.5, 0.95))
        mean = float((numbers * weights).sum() / upto[-1])
        return cls(int(numbers[0]), median, mean, p95, int(numbers[-1]))


@dataclass(frozen=True)
class ViewReport:
    """View of a corpus: its recipe in words, and rows by what became of them.

    Attributes:
        name, recipe: name, and recipe in words.
        counts: ``changed``, ``unchanged``, and reason -> rows that kept their text.
        is_stale: it was made of other rows than the corpus has now, and is not read.
    """

    name: str
    recipe: str
    counts: Mapping[str, int]
    is_stale: bool


@dataclass(frozen=True)
class CorpusReport:
    """Corpus in full.

    Attributes:
        name, rows, digest, parts, bytes: its name, size and identity.
        columns: column -> Arrow type.
        skipped: reason -> source rows left out.
        read_from: files it was read from on this machine.
        duplicates: rows whose text an earlier row has.
        characters: characters of a text.
        labels: the commonest labels with their rows; empty without labels.
        distinct_labels: number of labels.
        views: its views.
    """

    name: str
    rows: int
    digest: str
    parts: int
    bytes: int
    columns: Mapping[str, str]
    skipped: Mapping[str, int]
    read_from: Sequence[str]
    duplicates: int
    characters: Spread | None
    labels: Sequence[tuple[str | int | float, int]]
    distinct_labels: int
    views: Sequence[ViewReport]


@dataclass(frozen=True)
class TeacherReport:
    """Teacher in full; the figures of a damaged store are empty.

    Attributes:
        line: its line.
        contract: fields of the contract.
        id: the contract's id.
        origin: where its model came from.
        also_called: its other names.
        shards: number of shards.
        codecs: codec -> rows, mean and worst cosine to the vectors before encoding.
        provenance: how vectors were computed, with the rows of each way.
        tokens: tokens of a text as the teacher saw it, special ones included.
        truncated: texts of which it saw only the beginning.
        coverage: corpus, or corpus/view -> (rows with a vector, rows).
    """

    line: TeacherLine
    contract: Mapping[str, object]
    id: str
    origin: Mapping[str, str]
    also_called: Sequence[str]
    shards: int = 0
    codecs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    provenance: Sequence[Mapping[str, object]] = ()
    tokens: Spread | None = None
    truncated: int = 0
    coverage: Mapping[str, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True)
class CacheReport:
    """Corpora and teachers in full."""

    corpora: Sequence[CorpusReport]
    teachers: Sequence[TeacherReport]


def describe(cache: Cache, name: str | None = None, progress: Progress = NO_PROGRESS) -> CacheReport:
    """Count what a cache holds; texts and keys are read, vectors are not.

    Args:
        cache: the cache.
        name: corpus, teacher or contract id to describe; default: all.
        progress: receiver of progress.

    Raises:
        InputError: if there is no such corpus or teacher.
        CorruptCacheError: if a corpus is damaged.
    """
    corpora, teachers = cache.corpora(), cache.teachers()
    chosen = [corpus for corpus in corpora if name in (None, corpus.name)]
    matching = [teacher for teacher in teachers if name in (None, teacher.name)]
    if name is not None and not chosen and not matching:
        try:
            matching = [cache.teacher(name)]
        except InputError as error:
            raise InputError(f"{error}; corpora: {', '.join(cache.corpus_names()) or 'none'}") from error
    progress.phase("describe", sum(map(len, chosen)) + sum(map(len, corpora)) * len(matching))
    return CacheReport(
        [_corpus_report(cache, corpus, progress) for corpus in chosen],
        [_teacher_report(cache, teacher, corpora, progress) for teacher in matching],
    )


def _corpus_report(cache: Cache, corpus: Corpus, progress: Progress) -> CorpusReport:
    import pyarrow.compute as pc

    lengths: Counter[int] = Counter()
    labels: Counter[str | int | float] = Counter()
    for number, part in enumerate(corpus.parts):
        _count(lengths, pc.utf8_length(corpus.column(number, ORIGINAL)))
        if corpus.info.has_labels:
            _count(labels, corpus.column(number, "label"))
        progress.advance(part.rows)
    note = read_note(cache.derived_folder, corpus.name)
    return CorpusReport(
        name=corpus.name,
        rows=len(corpus),
        digest=corpus.info.digest,
        parts=len(corpus.parts),
        bytes=sum((corpus.folder / part.file_name).stat().st_size for part in corpus.parts),
        columns=corpus.info.types,
        skipped=dict(corpus.info.skipped),
        read_from=[file.path for file in note.files] if note is not None else [],
        duplicates=len(corpus) - int(np.count_nonzero(first_occurrences(list(corpus.iter_keys())))),
        characters=Spread.of(lengths),
        labels=sorted(labels.items(), key=lambda item: (-item[1], str(item[0])))[:MOST_LABELS],
        distinct_labels=len(labels),
        views=[
            ViewReport(view, record.recipe.describe(), dict(record.counts), record.of != corpus.info.digest)
            for view in corpus.view_names()
            for record in [read_record(corpus.folder / VIEWS / view)]
        ],
    )


def _count(counts: Counter[T], values: pa.Array) -> None:
    for entry in values.value_counts():
        counts[entry["values"].as_py()] += entry["counts"].as_py()


def _teacher_report(
    cache: Cache, teacher: CachedTeacher, corpora: Iterable[Corpus], progress: Progress
) -> TeacherReport:
    line = TeacherLine.of(cache, teacher)
    same = [one.name for one in cache.teachers() if one.contract == teacher.contract]
    known = TeacherReport(
        line=line,
        contract=teacher.contract.to_json(),
        id=teacher.contract.id,
        origin=teacher.origin,
        also_called=[name for name in same if name != teacher.name],
    )
    if line.damage is not None:
        return known
    store = cache.store(teacher.contract)
    tokens: Counter[int] = Counter()
    truncated = 0
    for shard, own in store.own_rows():
        # 0 means that the encoder does not count its tokens.
        numbers, counts = np.unique(shard.tokens[own & (shard.tokens > 0)], return_counts=True)
        tokens.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        truncated += int(np.count_nonzero(shard.truncated[own]))
    return replace(
        known,
        shards=len(store.shards),
        codecs=_codecs(store.shards),
        provenance=_provenance(store.shards),
        tokens=Spread.of(tokens),
        truncated=truncated,
        coverage=_coverage(store, corpora, progress),
    )


def _codecs(shards: Iterable[Shard]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for shard in shards:
        entry = found.setdefault(shard.header.codec, {"rows": 0, "mean_cosine": 0.0, "worst_cosine": 1.0})
        rows, error = len(shard), shard.header.error
        entry["rows"] += rows
        entry["mean_cosine"] += (error["mean_cosine"] - entry["mean_cosine"]) * rows / entry["rows"]
        entry["worst_cosine"] = min(entry["worst_cosine"], error["worst_cosine"])
    return found


def _provenance(shards: Iterable[Shard]) -> list[dict[str, object]]:
    rows: Counter[tuple[tuple[str, str], ...]] = Counter()
    for shard in shards:
        rows[tuple(sorted((key, str(value)) for key, value in shard.header.provenance.items()))] += len(shard)
    return [{"rows": count, **dict(fields)} for fields, count in rows.most_common()]


def _coverage(store: ShardStore, corpora: Iterable[Corpus], progress: Progress) -> dict[str, tuple[int, int]]:
    covered = {}
    for corpus in corpora:
        for texts in (corpus, *corpus.views()):
            found = sum(int(np.count_nonzero(store.locate(keys) >= 0)) for keys in texts.iter_keys())
            covered[corpus.name if texts is corpus else f"{corpus.name}/{texts.name}"] = (found, len(texts))
        progress.advance(len(corpus))
    return covered
