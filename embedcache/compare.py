"""What sets two caches apart: corpora, views, teachers, and the vectors of the contracts that both hold."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.difference import first_difference
from embedcache.errors import InputError
from embedcache.fsio import canonical_json
from embedcache.keys import KeyArray
from embedcache.noise import noise_angle
from embedcache.sampling import KeySample
from embedcache.store import ShardStore

N = TypeVar("N")

DEFAULT_SAMPLE = 10_000

_BLOCK_ROWS = 4096


@dataclass(frozen=True)
class CorpusDifference:
    """A corpus of the same name in both caches, with other content.

    Attributes:
        name: its name.
        rows: its rows in the first and in the second cache.
        columns: the columns whose values differ: ``original``, ``id``, ``label``.
        first_row: the first row that differs, counted from 0; None where one cache lacks a whole column.
        texts: that row's text in either; None where the corpus has ended before.
    """

    name: str
    rows: tuple[int, int]
    columns: tuple[str, ...]
    first_row: int | None
    texts: tuple[str | None, str | None]


@dataclass(frozen=True)
class ViewDifference:
    """A view of the same name in both caches, of a corpus that is the same, with other texts.

    Attributes:
        corpus: name of the corpus.
        name: the view's name.
        recipes: in what the recipes differ; empty where they do not.
        first_row: the first row that differs, counted from 0; None where no text does.
        texts: that row's text in either.
    """

    corpus: str
    name: str
    recipes: str
    first_row: int | None
    texts: tuple[str | None, str | None]


@dataclass(frozen=True)
class NameClash:
    """A teacher's name that stands for different contracts; ``differences`` maps field -> (first, second)."""

    name: str
    contract_ids: tuple[str, str]
    differences: Mapping[str, tuple[object, object]]


@dataclass(frozen=True)
class VectorComparison:
    """A contract that both caches hold vectors of.

    Attributes:
        contract_id: sha256 of the contract.
        names: the teacher's names in the first and in the second cache.
        only: keys only the first has, and only the second.
        both: keys both have.
        sampled: how many of these were compared.
        worst_cosine, mean_cosine: between the vectors of the same text; None where none was compared.
        largest_difference: of two components of the same place.
        expected_cosine: what codecs and compute dtypes explain; a worse one is a real difference.
        codecs: codecs of either's shards.
        provenance: what may have changed last bits, of either's shards, without repetition.
    """

    contract_id: str
    names: tuple[tuple[str, ...], tuple[str, ...]]
    only: tuple[int, int]
    both: int
    sampled: int
    worst_cosine: float | None
    mean_cosine: float | None
    largest_difference: float | None
    expected_cosine: float
    codecs: tuple[tuple[str, ...], tuple[str, ...]]
    provenance: tuple[tuple[Mapping[str, object], ...], tuple[Mapping[str, object], ...]]

    @property
    def beyond_noise(self) -> bool:
        """Whether a vector differs more than codecs and compute dtypes explain."""
        return self.worst_cosine is not None and self.worst_cosine < self.expected_cosine

    @property
    def same(self) -> bool:
        """Whether both have the same keys and, but for noise, the same vectors, under the same names."""
        return self.only == (0, 0) and not self.beyond_noise and self.names[0] == self.names[1]


@dataclass(frozen=True)
class CacheComparison:
    """What sets two caches apart.

    Attributes:
        corpora_only: names of corpora only the first has, and only the second.
        corpora_same: names of corpora that are the same in both.
        corpora_other: corpora of one name with other content.
        views_only: (corpus, view) of views only the first has, and only the second, of these same corpora.
        views_other: views of one name with other texts, or by other recipes.
        teachers_only: contract id -> names, of teachers only the first has, and only the second.
        clashes: names that stand for different contracts.
        vectors: a comparison for each contract in both.
    """

    corpora_only: tuple[tuple[str, ...], tuple[str, ...]]
    corpora_same: tuple[str, ...]
    corpora_other: tuple[CorpusDifference, ...]
    views_only: tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]
    views_other: tuple[ViewDifference, ...]
    teachers_only: tuple[Mapping[str, tuple[str, ...]], Mapping[str, tuple[str, ...]]]
    clashes: tuple[NameClash, ...]
    vectors: tuple[VectorComparison, ...]

    @property
    def same(self) -> bool:
        """Whether nothing but noise sets them apart."""
        corpora = (*self.corpora_only, self.corpora_other, *self.views_only, self.views_other)
        teachers = (*self.teachers_only, self.clashes)
        return not any(corpora) and not any(teachers) and all(one.same for one in self.vectors)

    def to_json(self) -> dict[str, object]:
        """Return the comparison as a JSON object."""
        vectors = [{**asdict(one), "beyond_noise": one.beyond_noise} for one in self.vectors]
        return {**asdict(self), "vectors": vectors, "same": self.same}


OnProgress = Callable[[str, int, int], None]
"""Called with what is being compared, how many of its keys were looked up and how many there are."""


def compare_caches(
    first: Cache,
    second: Cache,
    *,
    sample: int = DEFAULT_SAMPLE,
    seed: int = 0,
    on_progress: OnProgress | None = None,
) -> CacheComparison:
    """Compare two caches.

    Keys are compared one and all, a shard at a time; vectors on a sample.

    Args:
        first, second: the caches.
        sample: vectors to compare for each contract; 0 for none.
        seed: chooses them.
        on_progress: called at the start of each contract and after every shard.

    Raises:
        InputError: if ``sample`` is negative.
        CorruptCacheError: if either is damaged.
    """
    if sample < 0:
        raise InputError(f"--sample {sample}: expected 0 or more")
    corpora = ({c.name: c for c in first.corpora()}, {c.name: c for c in second.corpora()})
    shared = [(corpora[0][name], corpora[1][name]) for name in corpora[0] if name in corpora[1]]
    other = [(a, b) for a, b in shared if a.info.digest != b.info.digest]
    same = [(a, b) for a, b in shared if a.info.digest == b.info.digest]
    views = tuple(
        {(pair[side].name, view.name): view for pair in same for view in pair[side].views()}
        for side in (0, 1)
    )
    contracts = (_contracts(first), _contracts(second))
    both = [contract for contract in contracts[0] if contract in contracts[1]]
    return CacheComparison(
        corpora_only=(_missing(corpora[0], corpora[1]), _missing(corpora[1], corpora[0])),
        corpora_same=tuple(a.name for a, _ in same),
        corpora_other=tuple(_corpus_difference(a, b) for a, b in other),
        views_only=(_missing(views[0], views[1]), _missing(views[1], views[0])),
        views_other=tuple(_view_differences(views[0], views[1])),
        teachers_only=(_without(contracts[0], contracts[1]), _without(contracts[1], contracts[0])),
        clashes=tuple(_clashes(first, second)),
        vectors=tuple(
            _compare_vectors(
                (first.store(contract), second.store(contract)),
                (contracts[0][contract], contracts[1][contract]),
                KeySample(sample, seed) if sample else None,
                on_progress or (lambda *_: None),
            )
            for contract in both
        ),
    )


def _missing(here: Mapping[N, Corpus], there: Mapping[N, Corpus]) -> tuple[N, ...]:
    return tuple(name for name in here if name not in there)


def _contracts(cache: Cache) -> dict[Contract, tuple[str, ...]]:
    found: dict[Contract, tuple[str, ...]] = {}
    for teacher in cache.teachers():
        found[teacher.contract] = (*found.get(teacher.contract, ()), teacher.name)
    return found


def _without(
    here: Mapping[Contract, tuple[str, ...]], there: Mapping[Contract, tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    return {contract.id: names for contract, names in here.items() if contract not in there}


def _clashes(first: Cache, second: Cache) -> list[NameClash]:
    clashes = []
    for a in first.teachers():
        namesakes = [b for b in second.teachers() if b.name == a.name]
        # A merged cache may hold both contracts under the name; one that is the same is no clash.
        if a.contract not in [b.contract for b in namesakes]:
            clashes += [
                NameClash(a.name, (a.contract.id, b.contract.id), a.contract.differences(b.contract))
                for b in namesakes
            ]
    return clashes


def _corpus_difference(a: Corpus, b: Corpus) -> CorpusDifference:
    names = {**a.info.columns, **b.info.columns}
    columns = tuple(name for name in names if a.info.columns.get(name) != b.info.columns.get(name))
    row = None
    if a.info.columns.keys() == b.info.columns.keys():
        # Where parts are cut depends on the rows alone, so the same rows at the front are the same parts.
        pairs = zip(a.parts, b.parts, strict=False)
        part = next((n for n, (one, other) in enumerate(pairs) if one != other), None)
        if part is None:
            row = min(len(a), len(b))
        else:
            wanted = ("key", *(name for name in ("id", "label") if name in names))
            row = first_difference(a, part, {name: b.column(part, name) for name in wanted})
    return CorpusDifference(a.name, (len(a), len(b)), columns, row, (_text(a, row), _text(b, row)))


def _view_differences(
    first: Mapping[tuple[str, str], View], second: Mapping[tuple[str, str], View]
) -> Iterator[ViewDifference]:
    for (corpus, name), a in first.items():
        b = second.get((corpus, name))
        if b is not None:
            recipes = a.recipe.differences(b.recipe)
            if recipes or a.info.digest != b.info.digest:
                texts = _corpus_difference(a, b)
                row = texts.first_row if texts.columns else None
                yield ViewDifference(
                    corpus, name, recipes, row, texts.texts if row is not None else (None, None)
                )


def _text(corpus: Corpus, row: int | None) -> str | None:
    return corpus.texts(np.array([row]))[0] if row is not None and row < len(corpus) else None


def _compare_vectors(
    stores: tuple[ShardStore, ShardStore],
    names: tuple[tuple[str, ...], tuple[str, ...]],
    sample: KeySample | None,
    report: OnProgress,
) -> VectorComparison:
    a, b = stores
    both = done = 0
    what = f"compare {names[0][0]}"
    report(what, 0, len(a))
    for shard, own in a.own_rows():
        keys = shard.keys[own]
        common = keys[b.locate(keys) >= 0]
        both += len(common)
        if sample is not None:
            sample.add(common)
        done += len(keys)
        report(what, done, len(a))
    cosines, largest = np.empty(0), 0.0
    if sample is not None and both:
        cosines, largest = _cosines(stores, sample.keys())
    return VectorComparison(
        contract_id=a.contract.id,
        names=names,
        only=(len(a) - both, len(b) - both),
        both=both,
        sampled=len(cosines),
        worst_cosine=float(cosines.min()) if len(cosines) else None,
        mean_cosine=float(cosines.mean()) if len(cosines) else None,
        largest_difference=largest if len(cosines) else None,
        expected_cosine=_expected_cosine(stores),
        codecs=(_codecs(a), _codecs(b)),
        provenance=(_provenance(a), _provenance(b)),
    )


def _cosines(stores: tuple[ShardStore, ShardStore], keys: KeyArray) -> tuple[NDArray[np.float64], float]:
    """Return the cosine of each key's two vectors, and the largest difference of two components."""
    cosines, largest = [], 0.0
    for start in range(0, len(keys), _BLOCK_ROWS):
        block = keys[start : start + _BLOCK_ROWS]
        x, y = (store.vectors(store.locate(block)).astype(np.float64) for store in stores)
        largest = max(largest, float(np.abs(x - y).max()))
        cosines.append(_row_cosines(x, y))
    return np.concatenate(cosines), largest


def _row_cosines(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
    products = np.einsum("nd,nd->n", x, y)
    # Two vectors of zeros are the same; one alone has no direction to share.
    cosines: NDArray[np.float64] = (x == y).all(axis=1).astype(np.float64)
    np.divide(products, norms, out=cosines, where=norms > 0)
    # What holds NaN is like nothing.
    cosines[np.isnan(norms)] = -1.0
    return cosines


def _expected_cosine(stores: tuple[ShardStore, ShardStore]) -> float:
    """Return how far apart two vectors may be: angles on a sphere add up at most."""
    angles = (max((noise_angle(shard.header) for shard in store.shards), default=0.0) for store in stores)
    return math.cos(min(sum(angles), math.pi))


def _codecs(store: ShardStore) -> tuple[str, ...]:
    return tuple(sorted({shard.header.codec for shard in store.shards}))


def _provenance(store: ShardStore) -> tuple[Mapping[str, object], ...]:
    ways = [dict(one.header.provenance) for one in store.shards]
    found = {canonical_json(way): way for way in ways}
    return tuple(found[spelling] for spelling in sorted(found))
