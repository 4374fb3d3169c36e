"""A cache in figures: lengths, duplicates and labels of corpora, coverage and tokens of teachers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.catalog.connection import connect, explained, interruptible, open_cache
from embedcache.catalog.sources import OpenTeacher, corpus_table, open_teachers
from embedcache.corpus.corpus import Corpus
from embedcache.key_index import first_occurrences

if TYPE_CHECKING:
    import duckdb

SHOWN_LABELS = 20

_LENGTHS = "SELECT length(text), count(*) FROM counted GROUP BY ALL"
_LABELS = "SELECT label, count(*) AS n FROM counted GROUP BY ALL ORDER BY n DESC, label LIMIT ?"
_DISTINCT_LABELS = "SELECT count(DISTINCT label) FROM counted"

OnStep = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done and how much there is."""


@dataclass(frozen=True)
class Spread:
    """How whole numbers are spread.

    Attributes:
        least, median, mean, p95, most: of the numbers; the median and the 95th percentile are the lowest
            numbers that so many are not above.
        bins: (lowest, highest, count) of bins that double in width.
    """

    least: int
    median: int
    mean: float
    p95: int
    most: int
    bins: tuple[tuple[int, int, int], ...]

    @classmethod
    def of(cls, counts: Mapping[int, int]) -> Spread:
        """Return the spread of numbers given as number -> count, at least one."""
        numbers = np.array(sorted(counts), dtype=np.int64)
        weights = np.array([counts[int(number)] for number in numbers], dtype=np.int64)
        upto = np.cumsum(weights)

        def quantile(share: float) -> int:
            return int(numbers[np.searchsorted(upto, share * upto[-1])])

        return cls(
            least=int(numbers[0]),
            median=quantile(0.5),
            mean=float((numbers * weights).sum() / upto[-1]),
            p95=quantile(0.95),
            most=int(numbers[-1]),
            bins=_bins(numbers, weights),
        )


@dataclass(frozen=True)
class ViewStats:
    """A view of a corpus in figures.

    Attributes:
        name: its name.
        recipe: how it was made, in words.
        changed: rows with another text than the corpus's.
    """

    name: str
    recipe: str
    changed: int


@dataclass(frozen=True)
class CorpusStats:
    """A corpus in figures.

    Attributes:
        name: the corpus's name.
        rows: number of rows.
        distinct: number of distinct texts; the others repeat one.
        characters: Unicode characters of a row's text.
        labels: the commonest labels and the rows of each, commonest first; None without labels.
        distinct_labels: number of distinct labels.
        views: its views, by name; not those of rows that it has no longer.
    """

    name: str
    rows: int
    distinct: int
    characters: Spread
    labels: tuple[tuple[str | int | float, int], ...] | None
    distinct_labels: int
    views: tuple[ViewStats, ...] = ()

    @property
    def duplicates(self) -> int:
        """Rows whose text an earlier row has."""
        return self.rows - self.distinct


@dataclass(frozen=True)
class TeacherStats:
    """The vectors of a contract in figures.

    Attributes:
        name: the first of its names in the cache.
        contract: the contract's id.
        vectors: number of distinct texts with a vector.
        dimension: width of a vector.
        codecs: codec -> rows stored with it, a text in two shards counted twice.
        store: ``arrow`` or ``lmdb``.
        shards: number of shards.
        bytes: their size.
        tokens: tokens of a text as the teacher saw it, where that is known; None where it is of no text.
        truncated: texts it saw only the beginning of.
        covered: corpus -> rows that have a vector.
    """

    name: str
    contract: str
    vectors: int
    dimension: int
    codecs: Mapping[str, int]
    store: str
    shards: int
    bytes: int
    tokens: Spread | None
    truncated: int
    covered: Mapping[str, int]


@dataclass(frozen=True)
class CacheStats:
    """Figures of a cache's corpora and teachers."""

    corpora: tuple[CorpusStats, ...]
    teachers: tuple[TeacherStats, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        corpora = [{**asdict(one), "duplicates": one.duplicates} for one in self.corpora]
        return {"corpora": corpora, "teachers": [asdict(one) for one in self.teachers]}


def compute_stats(
    cache: Cache | str | Path,
    *,
    corpus: str | None = None,
    teacher: str | None = None,
    on_step: OnStep | None = None,
) -> CacheStats:
    """Count what a cache holds; no vector is read.

    Args:
        cache: the cache or its folder.
        corpus: this corpus alone; default: all.
        teacher: this teacher alone, by name or contract id; default: all.
        on_step: called as the work goes on.

    Raises:
        InputError: if there is no such corpus or teacher.
        CorruptCacheError: if a file of the cache is damaged.
    """
    opened = open_cache(cache)
    corpora = opened.corpora() if corpus is None else [opened.corpus(corpus)]
    teachers = open_teachers(opened, None if teacher is None else opened.teacher(teacher).contract)
    report = on_step or (lambda *_: None)
    with closing(connect(opened, views=())) as connection, explained():
        return CacheStats(
            tuple(_corpus_stats(connection, one, report) for one in corpora),
            tuple(_teacher_stats(one, corpora, report) for one in teachers),
        )


def _corpus_stats(connection: duckdb.DuckDBPyConnection, corpus: Corpus, report: OnStep) -> CorpusStats:
    report(f"texts of {corpus.name}", 0, len(corpus))
    # Not by the view of all corpora: it reads each of them, and labels of several types as one.
    connection.register("counted", corpus_table(corpus))
    lengths = _rows_of(connection, _LENGTHS)
    labels, distinct_labels = None, 0
    if corpus.info.has_labels:
        report(f"labels of {corpus.name}", 0, len(corpus))
        labels = tuple(_rows_of(connection, _LABELS, SHOWN_LABELS))
        ((distinct_labels,),) = _rows_of(connection, _DISTINCT_LABELS)
    report(f"duplicates of {corpus.name}", 0, len(corpus))
    distinct = int(np.count_nonzero(first_occurrences(list(corpus.iter_keys()))))
    views = tuple(
        ViewStats(view.name, view.recipe.describe(), view.record.counts.get("changed", 0))
        for view in corpus.views()
    )
    spread = Spread.of(dict(lengths))
    return CorpusStats(corpus.name, len(corpus), distinct, spread, labels, distinct_labels, views)


def _rows_of(connection: duckdb.DuckDBPyConnection, sql: str, *parameters: object) -> list[Any]:
    return interruptible(connection, lambda: connection.execute(sql, list(parameters)).fetchall())


def _teacher_stats(opened: OpenTeacher, corpora: Sequence[Corpus], report: OnStep) -> TeacherStats:
    store = opened.store
    report(f"tokens of {opened.name}", 0, len(store))
    tokens: Counter[int] = Counter()
    codecs: Counter[str] = Counter()
    truncated = 0
    for shard, own in store.own_rows():
        known = shard.tokens[own]
        numbers, counts = np.unique(known[known > 0], return_counts=True)
        tokens.update(dict(zip(numbers.tolist(), counts.tolist(), strict=True)))
        truncated += int(np.count_nonzero(shard.truncated[own]))
        codecs[shard.codec.name] += len(shard)
    return TeacherStats(
        name=opened.name,
        contract=store.contract.id,
        vectors=len(store),
        dimension=store.contract.dimension,
        codecs=dict(codecs),
        store=store.kind,
        shards=len(store.shards),
        bytes=store.bytes_on_disk,
        tokens=Spread.of(tokens) if tokens else None,
        truncated=truncated,
        covered={corpus.name: _covered(opened, corpus, report) for corpus in corpora},
    )


def _covered(opened: OpenTeacher, corpus: Corpus, report: OnStep) -> int:
    what = f"rows of {corpus.name} with a vector of {opened.name}"
    found = done = 0
    report(what, 0, len(corpus))
    for keys in corpus.iter_keys():
        found += int(np.count_nonzero(opened.store.locate(keys) >= 0))
        done += len(keys)
        report(what, done, len(corpus))
    return found


def _bins(numbers: NDArray[np.int64], weights: NDArray[np.int64]) -> tuple[tuple[int, int, int], ...]:
    edges = [0, 1]
    while edges[-1] <= numbers[-1]:
        edges.append(2 * edges[-1])
    places = np.searchsorted(edges, numbers, side="right") - 1
    counts = np.bincount(places, weights, minlength=len(edges) - 1).astype(np.int64)
    filled = np.flatnonzero(counts)
    return tuple(
        (edges[place], edges[place + 1] - 1, int(counts[place])) for place in range(filled[0], filled[-1] + 1)
    )
