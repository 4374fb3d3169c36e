"""Lost shards of a teacher: what is left of them, and the rows to encode in their place."""

from __future__ import annotations

import hashlib
import mmap
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.corpus.corpus import Corpus
from embedcache.fsio import read_sealed_json
from embedcache.keys import KEY_DTYPE, KeyArray, KeyIndex
from embedcache.store import Shard, ShardStore
from embedcache.store.base import is_shard_name
from embedcache.store.containers.lmdb import SEAL
from embedcache.teacher.options import DEFAULT_SHARD_ROWS
from embedcache.verify.files import peek_shard
from embedcache.verify.rows import find_rows, rows_without_vector

if TYPE_CHECKING:
    import pyarrow as pa

_BEGIN, _END = b"ARROW1\0\0", b"ARROW1"
# In a page of LMDB keys a name follows its length.
_NAME = re.compile(rb"\x40\0([0-9a-f]{64})")
_PAGE_HEADER = 16
# The end mark may by chance stand in what an LMDB page held before.
_ENDS_TRIED = 4


@dataclass
class LostShards:
    """Shards of a teacher that are damaged or missing.

    Attributes:
        peeked: those whose keys still read, without vectors.
        kept: name -> bytes of the whole shards in a damaged LMDB file.
        unknown: number of those of which nothing is known but the name.
        in_lmdb: True if the LMDB file has to be made again, of what is kept.
    """

    peeked: list[Shard] = field(default_factory=list)
    kept: dict[str, pa.Buffer] = field(default_factory=dict)
    unknown: int = 0
    in_lmdb: bool = False

    def add_lmdb(self, file: Path) -> None:
        """Add the shards of a damaged or missing LMDB file. It is not handed to liblmdb."""
        sealed, peeked, self.in_lmdb = _sealed_names(file), list[Shard](), True
        names = sealed or set[str]()
        if file.is_file() and file.stat().st_size:
            with file.open("rb") as handle:
                data = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            if sealed is None:
                # Names of shards that were deleted may still stand in it.
                names = {match[1].decode() for match in _NAME.finditer(data)}
            for candidates in _arrow_files(data):
                found = {hashlib.sha256(one).hexdigest(): one for one in candidates}
                self.kept |= {name: one for name, one in found.items() if name in names}
                if not found.keys() & names:
                    shards = (peek_shard(one, "", str(file)) for one in candidates)
                    peeked += [shard for shard in shards if shard is not None][:1]
        unknown = len(names - self.kept.keys() - {shard.name for shard in self.peeked})
        self.peeked += peeked[:unknown]
        self.unknown += max(0, unknown - len(peeked))
        if not names and not self.peeked:
            self.unknown += 1


def _sealed_names(file: Path) -> set[str] | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return {name for name in read_sealed_json(file.with_name(SEAL))["shards"] if is_shard_name(name)}
    return None


def _arrow_files(data: mmap.mmap) -> Iterator[list[pa.Buffer]]:
    """Yield, for each value of an LMDB file that begins as an Arrow file, what it may be."""
    import pyarrow as pa

    whole = pa.py_buffer(data)
    for match in re.finditer(re.escape(_BEGIN), data):
        start = match.start()
        # A large value lies in pages of its own, whose number stands before it.
        pages = int.from_bytes(data[max(0, start - 4) : start], "little")
        end = min(len(data), start - _PAGE_HEADER + max(pages, 1) * mmap.PAGESIZE)
        candidates: list[pa.Buffer] = []
        while len(candidates) < _ENDS_TRIED and (end := data.rfind(_END, start + len(_BEGIN), end)) > 0:
            candidates.append(whole[start : end + len(_END)])
        yield candidates


@dataclass(frozen=True)
class Window:
    """Rows that are encoded together and stored as one shard.

    Attributes:
        keys: dtype ``V16``, shape (n,).
        numbers: number of the corpus that holds each text, shape (n,).
        rows: its row there, shape (n,).
        shard: name of the lost shard it stands for, if that is known.
    """

    keys: KeyArray
    numbers: NDArray[np.int64]
    rows: NDArray[np.int64]
    shard: str = ""

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.keys)

    def texts(self, corpora: Sequence[Corpus]) -> list[str]:
        """Return the texts, in order."""
        found = [""] * len(self)
        for number in np.unique(self.numbers).tolist():
            places = np.flatnonzero(self.numbers == number)
            for place, text in zip(places.tolist(), corpora[number].texts(self.rows[places]), strict=True):
                found[place] = text
        return found


@dataclass(frozen=True)
class Plan:
    """Rows to encode in place of lost shards.

    Attributes:
        windows: shards to be, in the order of the corpora.
        without_text: number of lost rows whose text no corpus has.
    """

    windows: list[Window]
    without_text: int

    @property
    def rows(self) -> int:
        """Number of rows to encode."""
        return sum(map(len, self.windows))


def plan_windows(lost: LostShards, corpora: Sequence[Corpus], store: ShardStore) -> Plan:
    """Plan what to encode in place of lost shards.

    A shard whose texts are all known comes back with its rows, in their order. For the others it is what
    corpora and embedded views lack.

    Args:
        lost: the lost shards.
        corpora: sound corpora and views.
        store: the teacher's sound shards.
    """
    numbers, rows = find_rows([shard.keys for shard in lost.peeked], corpora)
    windows, start, without_text = [], 0, 0
    for shard in lost.peeked:
        part = slice(start, start + len(shard))
        start += len(shard)
        is_missing, known = store.locate(shard.keys) < 0, numbers[part] >= 0
        without_text += int((is_missing & ~known).sum())
        if is_missing.any() and not (is_missing & ~known).any():
            windows.append(Window(shard.keys[known], numbers[part][known], rows[part][known], shard.name))
    windows.sort(key=lambda one: (one.numbers[0], one.rows[0]))
    if lost.unknown or without_text:
        filled = list(_fill(windows, lost, corpora, store))
        # A key may be damaged itself: then its text is among those that lack a vector.
        without_text = max(0, without_text - sum(map(len, filled)))
        windows += filled
    return Plan(windows, without_text)


def _fill(
    planned: Sequence[Window], lost: LostShards, corpora: Sequence[Corpus], store: ShardStore
) -> Iterator[Window]:
    """Yield windows of what corpora and views lack, but for what is planned."""
    sizes = [len(shard) for shard in (*store.shards, *lost.peeked)]
    rows_each = max(sizes, default=DEFAULT_SHARD_ROWS)
    if lost.unknown + len(lost.peeked) == 1:
        rows_each = max(rows_each, DEFAULT_SHARD_ROWS)
    done = np.concatenate([np.empty(0, KEY_DTYPE), *(window.keys for window in planned)])
    for corpus, missing in rows_without_vector(corpora, store):
        lacking = np.flatnonzero(missing.mask)
        keys = missing.keys(lacking)
        is_planned = KeyIndex(done).locate(keys) >= 0
        missing.mask[lacking[is_planned]] = False
        done = np.concatenate([done, keys[~is_planned]])
        number = next(number for number, one in enumerate(corpora) if one is corpus)
        for rows in missing.windows(rows_each):
            yield Window(missing.keys(rows), np.full(len(rows), number), rows)
