"""Explanation of why a text is, or is not, in a cache: a field of the contract differs, or the text does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from embedcache.cache import Cache, CachedTeacher
from embedcache.contract import Contract
from embedcache.corpus.near_texts import NearText, Occurrence, find_near, find_occurrences
from embedcache.errors import InputError
from embedcache.keys import key_array
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.querying import by_contract


@dataclass(frozen=True)
class TeacherMatch:
    """Vector of a text under one teacher of the cache.

    Attributes:
        name, contract_id: of the teacher.
        differences: field -> (its value, the value asked for); empty for the teacher asked for, and if none
            was.
        codec, shard: of the vector; None where there is none.
        tokens: tokens of the text; 0 if the encoder does not count them.
        truncated: True if the teacher saw only the beginning of the text.
    """

    name: str
    contract_id: str
    differences: Mapping[str, tuple[object, object]]
    codec: str | None = None
    shard: str | None = None
    tokens: int = 0
    truncated: bool = False


@dataclass(frozen=True)
class Explanation:
    """A text in a cache.

    Attributes:
        text: the text.
        cached: True if the teacher asked for, or any if none was, has its vector.
        teachers: teachers of the cache, the nearest to the one asked for first.
        rows: rows of corpora and views that hold the text.
        near: for a text of no corpus, those that differ from it in case, spacing or punctuation.
    """

    text: str
    cached: bool
    teachers: Sequence[TeacherMatch]
    rows: Sequence[Occurrence]
    near: Sequence[NearText]


def explain(
    cache: Cache, text: str, teacher: str | None = None, progress: Progress = NO_PROGRESS
) -> Explanation:
    """Look a text up under every teacher of a cache.

    Args:
        cache: the cache.
        text: the text.
        teacher: teacher asked for: its name in the cache, the beginning of its contract id, or what ``build``
            takes. The model is loaded only if the cache does not know the name.
        progress: receiver of progress.

    Raises:
        TeacherError: if the teacher is unknown.
        CorruptCacheError: if the cache is damaged.
    """
    wanted = None if teacher is None else _contract_of(cache, teacher)
    teachers = [_match(cache, one, text, wanted) for one, *_ in by_contract(cache)]
    corpora = cache.corpora()
    rows = find_occurrences(text, [one for corpus in corpora for one in (corpus, *corpus.views())])
    near = [] if rows else find_near(text, corpora, progress)
    cached = any(one.codec is not None and not one.differences for one in teachers)
    nearest_first = sorted(teachers, key=lambda one: (len(one.differences), one.name))
    return Explanation(text, cached, nearest_first, rows, near)


def _contract_of(cache: Cache, teacher: str) -> Contract:
    from embedcache.teacher.load import load_teacher

    try:
        return cache.teacher(teacher).contract
    except InputError:
        return load_teacher(teacher, device="cpu").contract


def _match(cache: Cache, teacher: CachedTeacher, text: str, wanted: Contract | None) -> TeacherMatch:
    contract = teacher.contract
    match = TeacherMatch(teacher.name, contract.id, contract.differences(wanted) if wanted else {})
    store = cache.store(contract)
    position = store.locate(key_array([text]))
    if position[0] < 0:
        return match
    shard = store.shards[store.shards_at(position)[0]]
    tokens, truncated = store.seen(position)
    return replace(
        match,
        codec=shard.header.codec,
        shard=shard.name,
        tokens=int(tokens[0]),
        truncated=bool(truncated[0]),
    )
