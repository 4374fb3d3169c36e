"""Explanation why texts are, or are not, in a cache: which field of a contract differs, or what in a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from embedcache.cache import Cache
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.near_texts import NearText, Occurrence, find_near, find_occurrences
from embedcache.errors import TeacherError
from embedcache.keys import key_array
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.querying import by_contract
from embedcache.store import ShardStore

MOST_TEXTS = 5
"""Texts without a vector that are explained one by one."""

_DIGESTS = ("weights", "tokenizer", "architecture")


@dataclass(frozen=True)
class TeacherMatch:
    """A teacher of the cache, and the rows of the texts it has vectors of.

    Attributes:
        name, contract_id: of the teacher.
        differences: field -> (its value, the value asked for); empty for the teacher asked for, and if none
            was.
        cached: rows with a vector.
        truncated: of these, rows of which the teacher saw only the beginning.
    """

    name: str
    contract_id: str
    differences: Mapping[str, tuple[object, object]]
    cached: int = 0
    truncated: int = 0


@dataclass(frozen=True)
class StoredRow:
    """Vector of a text as a teacher's store has it; ``tokens`` is 0 if the encoder does not count them."""

    teacher: str
    codec: str
    shard: str
    tokens: int
    truncated: bool


@dataclass(frozen=True)
class TextReport:
    """A text in a cache.

    Attributes:
        text, key: the text and its key in hexadecimal.
        cached: whether the teacher asked for (or any, if none was) has its vector.
        stored: its vectors, by teacher.
        rows: rows of corpora and views that hold it.
        near: for a text of no corpus, those that differ from it in case, spacing or punctuation.
    """

    text: str
    key: str
    cached: bool
    stored: Sequence[StoredRow]
    rows: Sequence[Occurrence]
    near: Sequence[NearText]


@dataclass(frozen=True)
class Explanation:
    """Teachers of a cache, the nearest to the one asked for first; rows looked up; and some texts."""

    rows: int
    teachers: Sequence[TeacherMatch]
    texts: Sequence[TextReport]


def wanted_contract(cache: Cache, teacher: str | None = None, **settings: Any) -> Contract:
    """Return the contract that a build with these settings has.

    Args:
        cache: the cache.
        teacher: its name in the cache, the beginning of its contract id, or what ``build`` takes; default:
            the only teacher. The model is loaded only if the cache does not know the name.
        settings: ``pooling``, ``prompt``, ``max_length``, ``truncate_dim``, ``normalize`` and
            ``trust_remote_code`` as for a build; None leaves one as it is.

    Raises:
        TeacherError: if the teacher or a setting is unknown.
        InputError: if several teachers of the cache are called so.
    """
    from embedcache.teacher.load import POOLINGS, load_teacher

    names = {name for one in cache.teachers() for name in (one.name, one.contract.id)}
    if teacher is not None and not any(name == teacher or _begins(name, teacher) for name in names):
        return load_teacher(teacher, **settings, device="cpu").contract
    contract = cache.teacher(teacher).contract
    given = {name: value for name, value in settings.items() if value is not None}
    given.pop("trust_remote_code", None)
    if (pooling := given.get("pooling")) is not None:
        if pooling not in POOLINGS:
            raise TeacherError(f"unknown pooling {pooling!r}: use one of {', '.join(POOLINGS)}")
        given["pooling"] = POOLINGS[pooling]
    if "truncate_dim" in given:
        given["dimension"] = min(contract.dimension, given["truncate_dim"])
    return replace(contract, **given)


def _begins(contract_id: str, digits: str) -> bool:
    return len(digits) >= 6 and len(contract_id) == 64 and contract_id.startswith(digits)


def explain(
    cache: Cache,
    batches: Iterable[Sequence[str]],
    wanted: Contract | None = None,
    progress: Progress = NO_PROGRESS,
) -> Explanation:
    """Look texts up under every teacher of a cache.

    Args:
        cache: the cache.
        batches: the texts. A single one is explained in any case, of several the first without a vector of
            the teacher asked for, or of any if none was.
        wanted: contract asked for.
        progress: receiver of progress.

    Raises:
        CorruptCacheError: if the cache is damaged.
    """
    matches = [
        TeacherMatch(
            same[0].name, same[0].contract.id, same[0].contract.differences(wanted) if wanted else {}
        )
        for same in by_contract(cache)
    ]
    matches.sort(key=_distance)
    stores = {match.contract_id: cache.store(cache.teacher(match.contract_id).contract) for match in matches}
    rows, first, missing = 0, "", dict[str, None]()
    progress.phase("look up")
    for texts in batches:
        keys, found = key_array(texts), np.zeros(len(texts), np.bool_)
        for number, match in enumerate(matches):
            store = stores[match.contract_id]
            positions = store.locate(keys)
            cached = positions >= 0
            cut = int(store.seen(positions[cached])[1].sum())
            matches[number] = replace(
                match, cached=match.cached + int(cached.sum()), truncated=match.truncated + cut
            )
            if not match.differences:
                found |= cached
        if len(missing) < MOST_TEXTS:
            missing.update(dict.fromkeys(texts[row] for row in np.flatnonzero(~found).tolist()))
        first = first or next(iter(texts), "")
        rows += len(texts)
        progress.advance(len(texts))
    shown = [first] if rows == 1 else list(missing)[:MOST_TEXTS]
    opened = [(match, stores[match.contract_id]) for match in matches]
    return Explanation(rows, matches, _text_reports(cache, opened, shown, progress))


def _distance(match: TeacherMatch) -> tuple[int, int, str]:
    # Another model is farther than any other setting.
    return sum(name in _DIGESTS for name in match.differences), len(match.differences), match.name


def _text_reports(
    cache: Cache, stores: Sequence[tuple[TeacherMatch, ShardStore]], texts: Sequence[str], progress: Progress
) -> list[TextReport]:
    corpora = cache.corpora()
    everything: list[Corpus] = [one for corpus in corpora for one in (corpus, *corpus.views())]
    occurrences = find_occurrences(texts, everything)
    unknown = [text for text, rows in zip(texts, occurrences, strict=True) if not rows]
    near = find_near(unknown, corpora, progress)
    reports = []
    for text, rows in zip(texts, occurrences, strict=True):
        found = [(match, row) for match, store in stores for row in _stored(match.name, store, text)]
        key, cached = key_array([text]).tobytes().hex(), any(not match.differences for match, _ in found)
        reports.append(TextReport(text, key, cached, [row for _, row in found], rows, near.get(text, ())))
    return reports


def _stored(teacher: str, store: ShardStore, text: str) -> list[StoredRow]:
    position = store.locate(key_array([text]))
    if position[0] < 0:
        return []
    starts = np.cumsum([0, *map(len, store.shards)])
    shard = store.shards[int(np.searchsorted(starts, position[0], side="right")) - 1]
    tokens, truncated = store.seen(position)
    return [StoredRow(teacher, shard.header.codec, shard.name, int(tokens[0]), bool(truncated[0]))]
