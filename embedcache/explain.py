"""Why a text is, or is not, in a cache: which field of the contract differs, or what in the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from embedcache import reuse
from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.corpus.readers import ReadOptions, ReadReport, Source, read_batches
from embedcache.errors import InputError, TeacherError
from embedcache.keys import KeyArray, key_array
from embedcache.near_texts import NearText, Occurrence, find_near, find_occurrences
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.teacher.aliases import ALIASES

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DIGESTS = ("weights", "tokenizer", "architecture")
DEFAULT_SHOW = 5
# As in Cache.teacher: fewer are met by chance.
_LEAST_DIGITS = 6


@dataclass(frozen=True)
class Candidate:
    """A teacher of the cache beside the one asked for.

    Attributes:
        name: its name.
        contract_id: sha256 of its contract.
        differences: field -> (the candidate's value, the value asked for).
    """

    name: str
    contract_id: str
    differences: Mapping[str, tuple[object, object]]


@dataclass(frozen=True)
class Wanted:
    """The contract that texts are looked up under.

    Attributes:
        name: what the teacher is called.
        contract: its contract.
        loaded: whether the model was loaded to find out; else the cache's own record was taken.
    """

    name: str
    contract: Contract
    loaded: bool


@dataclass(frozen=True)
class TextFinding:
    """State of a text in a cache.

    Attributes:
        text: the text.
        key: its key, in hexadecimal.
        cached: True if it has a vector.
        shard, codec: where and how the vector is stored; None where there is none.
        tokens: tokens the teacher saw; None where that is not known.
        truncated: True if it saw only the beginning.
        rows: rows of corpora and views that hold the text.
        near: texts that differ only in case, spacing or punctuation, for a text without a vector.
        lender: teacher of another ``max_length`` whose vector a build would carry over; None where there is
            none.
    """

    text: str
    key: str
    cached: bool
    shard: str | None = None
    codec: str | None = None
    tokens: int | None = None
    truncated: bool | None = None
    rows: tuple[Occurrence, ...] = ()
    near: tuple[NearText, ...] = ()
    lender: str | None = None


@dataclass
class Explanation:
    """Why texts are, or are not, in a cache.

    Attributes:
        wanted: the contract asked for.
        known: the names under which the cache holds this very contract; empty where it does not.
        candidates: its other teachers, the nearest first.
        rows: rows looked up.
        skipped: reason -> rows of a file that were skipped.
        cached: rows whose vectors are there.
        truncated: of these, how many the teacher saw only the beginning of.
        reusable: rows that are not there but would be carried over from another ``max_length``.
        texts: the texts looked up, or of a file the first that are not cached.
    """

    wanted: Wanted
    known: tuple[str, ...]
    candidates: tuple[Candidate, ...]
    rows: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    cached: int = 0
    truncated: int = 0
    reusable: int = 0
    texts: tuple[TextFinding, ...] = ()

    def to_json(self) -> dict[str, object]:
        """Return the explanation as a JSON object."""
        found = asdict(self)
        found["wanted"]["contract_id"] = self.wanted.contract.id
        return found


def want(
    cache: Cache,
    teacher: str,
    *,
    pooling: str | None = None,
    prompt: str | None = None,
    max_length: int | None = None,
    truncate_dim: int | None = None,
    normalize: bool | None = None,
    trust_remote_code: bool = False,
    load: bool = False,
) -> Wanted:
    """Return the contract a build with these settings would have.

    A teacher's name in the cache, or the beginning of its contract id, without further settings, is answered
    from the cache alone. Otherwise the model is loaded: as a build would load it, or, for a name that only
    the cache knows, from where the cache had it from, with that contract's settings where none are given.

    Args:
        cache: the cache.
        teacher: alias, hub id, folder, name in the cache, or contract id.
        pooling, prompt, max_length, truncate_dim, normalize, trust_remote_code: see
            :func:`embedcache.teacher.load.load_teacher`.
        load: load the model in any case; it tells whether the cache's record is still what the model is.

    Raises:
        TeacherError: if the teacher is not known or cannot be loaded.
        InputError: if several teachers of the cache are called so.
    """
    given: dict[str, Any] = {"pooling": pooling, "prompt": prompt, "max_length": max_length}
    given |= {"truncate_dim": truncate_dim, "normalize": normalize}
    in_cache = any(teacher == one.name or _is_id_of(teacher, one.contract) for one in cache.teachers())
    changed = any(value is not None for value in given.values())
    if in_cache and not changed and not load:
        found = cache.teacher(teacher)
        return Wanted(found.name, found.contract, loaded=False)
    from embedcache.teacher.load import load_teacher, logits_teacher
    from embedcache.teacher.outputs import LOGITS, PROJECTION

    spec, of_logits = teacher, False
    if in_cache and teacher not in ALIASES and not Path(teacher).is_dir():
        found = cache.teacher(teacher)
        if found.contract.output == PROJECTION:
            raise TeacherError(
                f"teacher {found.name!r} is a projection of another teacher's vectors, which has no settings "
                "and no model: leave them and --load out, or explain the teacher it was made of"
            )
        of_logits = found.contract.output == LOGITS
        spec = cache.model_source(found)
        given = {name: _setting(found.contract, name) if old is None else old for name, old in given.items()}
    try:
        loaded = load_teacher(spec, **given, trust_remote_code=trust_remote_code, device="cpu")
        loaded = logits_teacher(loaded) if of_logits else loaded
    except TeacherError as error:
        # With a slash it is no name in a cache, and the error has nothing to do with what the cache holds.
        if in_cache or "/" in teacher or teacher in ALIASES:
            raise
        held = ", ".join(f"{one.name} ({one.contract.id[:12]})" for one in cache.teachers()) or "none"
        raise TeacherError(
            f"{error}; teachers of the cache, by name or at least {_LEAST_DIGITS} digits of the contract id: "
            f"{held}"
        ) from error
    return Wanted(loaded.name, loaded.contract, loaded=True)


def _is_id_of(text: str, contract: Contract) -> bool:
    return len(text) >= _LEAST_DIGITS and contract.id.startswith(text)


def _setting(contract: Contract, name: str) -> object:
    """Return what to give ``load_teacher`` to get a contract's setting; None leaves it to the model."""
    value = getattr(contract, name)
    if name == "pooling":
        from embedcache.teacher.load import POOLINGS

        return next((word for word, stored in POOLINGS.items() if stored == value), None)
    return value or None if name == "max_length" else value


def candidates(cache: Cache, contract: Contract) -> list[Candidate]:
    """Return the cache's teachers of other contracts, the nearest first.

    A teacher is the nearer the fewer digests differ (another model is far), then the fewer other fields.
    """
    found = [
        Candidate(teacher.name, teacher.contract.id, teacher.contract.differences(contract))
        for teacher in cache.teachers()
        if teacher.contract != contract
    ]

    def distance(candidate: Candidate) -> tuple[int, int, str]:
        digests = sum(name in _DIGESTS for name in candidate.differences)
        return digests, len(candidate.differences) - digests, candidate.name

    return sorted(found, key=distance)


def explain_texts(
    cache: Cache, wanted: Wanted, texts: Sequence[str], *, progress: Progress = NO_PROGRESS
) -> Explanation:
    """Explain each of ``texts``.

    Args:
        cache: the cache.
        wanted: the contract, from :func:`want`.
        texts: the texts, exactly as a corpus would hold them.
        progress: receives phases and rows.

    Raises:
        CorruptCacheError: if the cache is damaged.
    """
    search = _Search(cache, wanted)
    search.count(texts)
    return search.explanation({}, texts, progress)


def explain_sources(
    cache: Cache,
    wanted: Wanted,
    sources: Sequence[Source],
    options: ReadOptions,
    *,
    show: int = DEFAULT_SHOW,
    progress: Progress = NO_PROGRESS,
) -> Explanation:
    """Count which rows of ``sources`` are cached, and explain the first ``show`` texts that are not.

    Args:
        cache: the cache.
        wanted: the contract, from :func:`want`.
        sources: as :func:`embedcache.corpus.readers.expand_sources` returns them.
        options: what to take from them.
        show: how many texts to explain.
        progress: receives phases and rows.

    Raises:
        InputError: as reading does, or if ``show`` is negative.
        CorruptCacheError: if the cache is damaged.
    """
    if show < 0:
        raise InputError(f"--show {show}: expected 0 or more")
    search = _Search(cache, wanted)
    report = ReadReport()
    missing: dict[str, None] = {}
    progress.phase("read sources")
    for batch in read_batches(sources, options, report):
        here = search.count(batch.texts)
        if len(missing) < show:
            missing.update(dict.fromkeys(batch.texts[i] for i in np.flatnonzero(~here)))
        progress.advance(len(batch.texts))
    return search.explanation(dict(report.skipped), list(missing)[:show], progress)


class _Search:
    """Looks texts up under one contract, and counts."""

    def __init__(self, cache: Cache, wanted: Wanted) -> None:
        self._cache = cache
        self._wanted = wanted
        self._store = cache.store(wanted.contract)
        self._givers = reuse.related_stores(cache, wanted.contract)
        self._codec = reuse.default_codec(self._store, self._givers)
        self._rows = self._cached = self._truncated = self._reusable = 0

    def count(self, texts: Sequence[str]) -> NDArray[np.bool_]:
        """Count ``texts`` in, and return which of them are cached."""
        keys = key_array(texts)
        positions = self._store.locate(keys)
        here = positions >= 0
        _, truncated = self._store.seen(positions[here])
        self._rows += len(texts)
        self._cached += int(here.sum())
        self._truncated += int(truncated.sum())
        self._reusable += sum(name is not None for name in self._lenders(keys[~here]))
        return here

    def _lenders(self, keys: KeyArray) -> list[str | None]:
        """Return, for each key, the teacher of another ``max_length`` that lends its vector."""
        lent = reuse.find_reusable(self._givers, keys, self._wanted.contract.max_length, self._codec)
        names = {one.contract: one.name for one in self._cache.teachers()}
        numbers = lent.stores.tolist()
        return [None if one < 0 else names[self._givers[one].contract] for one in numbers]

    def _find(self, texts: Sequence[str], progress: Progress) -> Iterator[TextFinding]:
        corpora, keys = self._cache.corpora(), key_array(texts)
        places = self._store.locate(keys)
        missing = [text for text, place in zip(texts, places.tolist(), strict=True) if place < 0]
        near = find_near(missing, corpora, progress)
        views = [view for corpus in corpora for view in corpus.views()]
        rows = find_occurrences(texts, [*corpora, *views])
        for number, (text, lender) in enumerate(zip(texts, self._lenders(keys), strict=True)):
            one = TextFinding(
                text, keys[number].tobytes().hex(), bool(places[number] >= 0), rows=rows[number]
            )
            if not one.cached:
                yield replace(one, near=near[text], lender=lender)
                continue
            (shard_number,), _ = reuse.shard_places(self._store, places[number : number + 1])
            shard, (tokens, truncated) = self._store.shards[shard_number], self._store.seen(places[[number]])
            yield replace(
                one,
                shard=shard.name,
                codec=shard.header.codec,
                tokens=int(tokens[0]) or None,
                truncated=bool(truncated[0]),
            )

    def explanation(self, skipped: dict[str, int], texts: Sequence[str], progress: Progress) -> Explanation:
        contract = self._wanted.contract
        known = tuple(one.name for one in self._cache.teachers() if one.contract == contract)
        return Explanation(
            wanted=self._wanted,
            known=known,
            candidates=tuple(candidates(self._cache, contract)),
            rows=self._rows,
            skipped=skipped,
            cached=self._cached,
            truncated=self._truncated,
            reusable=self._reusable,
            texts=tuple(self._find(texts, progress)),
        )
