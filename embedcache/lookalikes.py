"""Texts in a cache: where each one stands, and which others differ from it only in what is easily overlooked.

Rows are kept exactly, so a trailing blank or an accent composed in another way makes another text.
"""

from __future__ import annotations

import time
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from embedcache import reuse
from embedcache.cache import Cache
from embedcache.corpus.corpus import View
from embedcache.key_index import KeyIndex
from embedcache.keys import key_array
from embedcache.store import ShardStore

_ROWS_SHOWN = 5
_NEAR_SHOWN = 3


@dataclass(frozen=True)
class Occurrence:
    """Rows of a corpus, or of a view of one: how many, and the first of them, counted from 0."""

    corpus: str
    count: int
    first_rows: tuple[int, ...]
    view: str | None = None


@dataclass(frozen=True)
class NearText:
    """A text of a corpus that is nearly the one asked for.

    Attributes:
        text: the text.
        corpus, row: where it is.
        differs_in: ``blanks at the ends``, ``blanks inside``, ``letter case``, ``Unicode form``,
            ``punctuation``.
        cached: whether its vector is there.
    """

    text: str
    corpus: str
    row: int
    differs_in: tuple[str, ...]
    cached: bool


@dataclass(frozen=True)
class TextFinding:
    """What a cache knows of a text.

    Attributes:
        text: the text.
        key: its key, in hexadecimal.
        cached: whether its vector is there.
        shard, codec: where and how the vector is stored; None where there is none.
        tokens: tokens the teacher saw; None where that is not known.
        truncated: whether it saw only the beginning.
        rows: where the text stands in the corpora.
        near: texts that are nearly it, for a text that is not cached.
        lender: the teacher of another ``max_length`` whose vector a build would carry over, for a text that
            is not cached; None where there is none.
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


OnRows = Callable[[str, int, float], None]
"""Called with what is being read (``sources`` or ``corpora``), the rows so far and the seconds."""


def find_texts(
    cache: Cache, store: ShardStore, texts: Sequence[str], on_rows: OnRows | None = None
) -> tuple[TextFinding, ...]:
    """Say of each of ``texts`` where it stands in ``cache``, and for those without a vector what is near.

    Reads the keys of every corpus, and the texts of every corpus where a vector is missing.

    Raises:
        CorruptCacheError: if the cache is damaged.
    """
    keys = key_array(texts)
    positions = store.locate(keys)
    missing = [text for text, position in zip(texts, positions, strict=True) if position < 0]
    near = _near(cache, store, missing, on_rows)
    rows = _occurrences(cache, texts)
    found = []
    for number, (text, position) in enumerate(zip(texts, positions, strict=True)):
        name = keys[number].tobytes().hex()
        if position < 0:
            found.append(TextFinding(text, name, False, rows=rows[number], near=tuple(near.get(text, ()))))
            continue
        shard_number, _ = reuse.shard_places(store, positions[number : number + 1])
        shard = store.shards[shard_number[0]]
        tokens, truncated = store.seen(positions[number : number + 1])
        found.append(
            TextFinding(
                text,
                name,
                True,
                shard=shard.name,
                codec=shard.header.codec,
                tokens=int(tokens[0]) or None,
                truncated=bool(truncated[0]),
                rows=rows[number],
            )
        )
    return tuple(found)


def _occurrences(cache: Cache, texts: Sequence[str]) -> list[tuple[Occurrence, ...]]:
    """Return the rows of each text, corpus by corpus, and those of views behind."""
    keys = key_array(texts)
    index = KeyIndex(keys)
    of_key: dict[bytes, list[Occurrence]] = {one.tobytes(): [] for one in keys}
    corpora = cache.corpora()
    for texts_of in [*corpora, *(view for corpus in corpora for view in corpus.views())]:
        rows: dict[bytes, list[int]] = {}
        start = 0
        for part in texts_of.iter_keys():
            places = index.locate(part)
            for row in np.flatnonzero(places >= 0):
                rows.setdefault(keys[places[row]].tobytes(), []).append(start + int(row))
            start += len(part)
        where = (texts_of.of.name, texts_of.name) if isinstance(texts_of, View) else (texts_of.name, None)
        for name, found in rows.items():
            of_key[name].append(Occurrence(where[0], len(found), tuple(found[:_ROWS_SHOWN]), where[1]))
    return [tuple(of_key[one.tobytes()]) for one in keys]


def _near(
    cache: Cache, store: ShardStore, texts: Sequence[str], on_rows: OnRows | None
) -> dict[str, list[NearText]]:
    """Return, for each text, texts of the corpora that differ from it in nothing but what is overlooked."""
    near: dict[str, list[NearText]] = {text: [] for text in texts}
    wanted: dict[str, list[str]] = {}
    for text in texts:
        wanted.setdefault(_folded(text), []).append(text)
    if not wanted:
        return near
    for corpus, row, found in _all_texts(cache, on_rows):
        for text in wanted.get(_folded(found), ()):
            others = near[text]
            if found != text and len(others) < _NEAR_SHOWN and found not in [one.text for one in others]:
                cached = bool(store.locate(key_array([found]))[0] >= 0)
                others.append(NearText(found, corpus, row, _differences(text, found), cached))
    return near


def _all_texts(cache: Cache, on_rows: OnRows | None) -> Iterator[tuple[str, int, str]]:
    started, read = time.perf_counter(), 0
    for corpus in cache.corpora():
        row = 0
        for texts in corpus.iter_texts():
            for text in texts:
                yield corpus.name, row, text
                row += 1
            read += len(texts)
            if on_rows is not None:
                on_rows("corpora", read, time.perf_counter() - started)


class _WithoutPunctuation(dict[int, int | None]):
    """What :meth:`str.translate` makes of a character: nothing of punctuation."""

    def __missing__(self, code: int) -> int | None:
        self[code] = None if unicodedata.category(chr(code)).startswith("P") else code
        return self[code]


_WITHOUT_PUNCTUATION = _WithoutPunctuation()


def _folded(text: str) -> str:
    return _composed(" ".join(_bare(_composed(text)).split()).casefold())


def _bare(text: str) -> str:
    """Return ``text`` without punctuation; one of nothing else as it is, or all of them would look alike."""
    bare = text.translate(_WITHOUT_PUNCTUATION)
    return bare if bare.strip() else text


def _punctuation(text: str) -> list[str]:
    return [character for character in text if _WITHOUT_PUNCTUATION[ord(character)] is None]


def _composed(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _differences(a: str, b: str) -> tuple[str, ...]:
    """Name what two texts of the same folded form differ in."""
    bare_a, bare_b = _bare(a.strip()), _bare(b.strip())
    words_a, words_b = " ".join(bare_a.split()), " ".join(bare_b.split())
    checks = {
        "blanks at the ends": _ends(a) != _ends(b),
        "blanks inside": _composed(bare_a).casefold() != _composed(bare_b).casefold(),
        "letter case": _composed(words_a) != _composed(words_b),
        "Unicode form": words_a.casefold() != words_b.casefold(),
        "punctuation": _punctuation(a) != _punctuation(b),
    }
    return tuple(name for name, differs in checks.items() if differs)


def _ends(text: str) -> tuple[str, str]:
    return text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
