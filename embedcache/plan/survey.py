"""Reading a source once: how many rows, how many distinct texts, which of them a cache has."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from embedcache import reuse
from embedcache.corpus.readers import ReadOptions, ReadReport, Source, read_batches
from embedcache.fsio import explain_os_error
from embedcache.key_index import first_occurrences
from embedcache.keys import KEY_DTYPE, KeyArray, key_array
from embedcache.plan.views import ViewTexts
from embedcache.sampling import KeySample

if TYPE_CHECKING:
    from embedcache.cache import Cache
    from embedcache.contract import Contract
    from embedcache.share.rows import RemoteKeys

# Where there is no second output it lacks nothing.
_CACHED, _MISSING, _REUSABLE, _COARSER, _REMOTE = range(5)
_STATES, _STATE_BITS, _MOST_OUTPUTS = 8, 3, 2
_PART_ROWS = 65536


@dataclass(frozen=True)
class Holdings:
    """What a cache, if there is one, has for a contract.

    Attributes:
        contract: the contract.
        codec: name of the codec the vectors are or would be stored in.
        cache: the cache; None where there is none yet.
        remote: the keys on a remote; None without one.
    """

    contract: Contract
    codec: str
    cache: Cache | None = None
    remote: RemoteKeys | None = None
    _shards: set[int] = field(default_factory=set, init=False, repr=False, compare=False)

    def remote_bytes(self) -> int:
        """Return the size of the remote's shards that hold rows which were looked up."""
        return sum(self.remote.shards[number].bytes for number in self._shards) if self.remote else 0

    def look_up(self) -> Callable[[KeyArray], Known]:
        """Return a function from keys to what is known of them."""
        local = self._look_up_local()
        remote = self.remote
        if remote is None or not remote.shards:
            return local

        def known(keys: KeyArray) -> Known:
            found = local(keys)
            wanted = np.flatnonzero((found.state == _MISSING) | (found.state == _COARSER))
            positions = remote.locate(keys[wanted])
            found.state[wanted[positions >= 0]] = _REMOTE
            self._shards.update(np.unique(remote.shards_at(positions[positions >= 0])).tolist())
            return found

        return known

    def _look_up_local(self) -> Callable[[KeyArray], Known]:
        if self.cache is None:
            return _nothing_known
        store = self.cache.store(self.contract)
        givers = reuse.donors(self.cache, self.contract)

        def known(keys: KeyArray) -> Known:
            found = _nothing_known(keys)
            positions = store.locate(keys)
            here = positions >= 0
            found.state[here] = _CACHED
            found.tokens[here], found.truncated[here] = store.seen(positions[here])
            lent = reuse.locate(givers, keys, self.contract.max_length, self.codec)
            for number, donor in enumerate(givers):
                rows = (lent.donors == number) & ~here
                found.state[rows] = _REUSABLE
                found.tokens[rows], _ = donor.store.seen(lent.positions[rows])
            found.state[lent.coarser & ~here] = _COARSER
            return found

        return known


@dataclass(frozen=True)
class Known:
    """What a cache knows of n keys: ``state`` uint8, ``tokens`` int32 (0: unknown), ``truncated`` bool."""

    state: NDArray[np.uint8]
    tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]


def _look_up_all(holdings: Sequence[Holdings]) -> Callable[[KeyArray], tuple[Known, NDArray[np.uint8]]]:
    """Return a function from keys to what is known of them and numbers that say the state of each output.

    A text has to be encoded where one output lacks it: one pass of the teacher gives all of them.
    """
    each = [one.look_up() for one in holdings]

    def known(keys: KeyArray) -> tuple[Known, NDArray[np.uint8]]:
        found = [look_up(keys) for look_up in each]
        code = np.zeros(len(keys), np.uint8)
        for place, one in enumerate(found):
            code |= one.state << (_STATE_BITS * place)
        tokens, truncated = found[0].tokens, found[0].truncated
        for other in found[1:]:
            tokens, truncated = np.maximum(tokens, other.tokens), truncated | other.truncated
        return Known(_OF_ALL[code], tokens, truncated), code

    return known


def _state_of(code: int) -> int:
    """Return the state of a text, given those of its outputs: the one that takes most to mend."""
    states = {code >> (_STATE_BITS * place) & _STATES - 1 for place in range(_MOST_OUTPUTS)}
    order = (_MISSING, _COARSER, _REMOTE, _REUSABLE, _CACHED)
    return next((state for state in order if state in states), _MISSING)


_OF_ALL = np.array([_state_of(code) for code in range(_STATES**_MOST_OUTPUTS)], dtype=np.uint8)
"""The state of a text by the number that says the state of each output."""


def _nothing_known(keys: KeyArray) -> Known:
    rows = len(keys)
    return Known(np.full(rows, _MISSING, np.uint8), np.zeros(rows, np.int32), np.zeros(rows, dtype=np.bool_))


@dataclass(frozen=True)
class Held:
    """What is there of one output: distinct texts that are cached, and that can be carried over."""

    cached: int
    reusable: int


@dataclass
class Survey:
    """What reading a source found.

    Attributes:
        sample: a uniform sample of the distinct texts that would have to be encoded.
        rows: rows kept.
        skipped: reason -> rows skipped.
        not_asked: rows that were not asked for.
        distinct: distinct texts, those of views that are counted among them.
        cached: distinct texts the cache has all outputs of.
        reusable: distinct texts of which what is lacking can be carried over from another ``max_length``.
        coarser_rows: distinct texts that could be, were they not stored in a coarser codec.
        remote: distinct texts of which what is lacking can be fetched from a remote.
        outputs: the same for each output by itself.
        known_rows: rows (not distinct texts) of which the cache knows how long they are.
        known_tokens: tokens of these together.
        known_truncated: how many of these are truncated.
        seconds: how long it took.
    """

    sample: KeySample
    rows: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    not_asked: int = 0
    distinct: int = 0
    cached: int = 0
    reusable: int = 0
    coarser_rows: int = 0
    remote: int = 0
    outputs: tuple[Held, ...] = ()
    known_rows: int = 0
    known_tokens: int = 0
    known_truncated: int = 0
    seconds: float = 0.0

    @property
    def missing(self) -> int:
        """Distinct texts that have to be encoded."""
        return self.distinct - self.cached - self.reusable - self.remote


OnRows = Callable[[int, float], None]
"""Called with the rows read so far and the seconds since reading began."""


def survey(
    sources: Sequence[Source],
    options: ReadOptions,
    holdings: Sequence[Holdings],
    *,
    sample_rows: int,
    seed: int = 0,
    views: Sequence[ViewTexts] = (),
    on_rows: OnRows | None = None,
) -> Survey:
    """Read ``sources`` once and compare them with a cache.

    Memory is that of the sample and about one byte a row; 17 bytes a row go through a temporary file.

    Args:
        sources: as :func:`embedcache.corpus.readers.expand_sources` returns them.
        options: what to take from them.
        holdings: what is there already of each output, two at most.
        sample_rows: size of the sample of missing texts.
        seed: of the sample.
        views: what gives the texts of views that are to be encoded as well.
        on_rows: called after every batch.

    Raises:
        InputError: as reading does.
        StorageError: if the temporary file cannot be written.
    """
    found = Survey(KeySample(sample_rows, seed))
    report = ReadReport()
    known = _look_up_all(holdings)
    started = time.perf_counter()
    with tempfile.TemporaryFile() as keys_file, tempfile.TemporaryFile() as states_file:

        def look_up(texts: list[str]) -> Known:
            keys = key_array(texts)
            seen, code = known(keys)
            missing = (seen.state == _MISSING) | (seen.state == _COARSER)
            found.sample.add(keys[missing], [texts[i] for i in np.flatnonzero(missing)])
            _spool(keys_file, keys.tobytes())
            _spool(states_file, code.tobytes())
            return seen

        for batch in read_batches(sources, options, report):
            seen = look_up(batch.texts)
            counted = seen.tokens > 0
            found.known_rows += int(counted.sum())
            found.known_tokens += int(seen.tokens[counted].sum(dtype=np.int64))
            found.known_truncated += int(seen.truncated[counted].sum())
            for texts_of_view in views:
                look_up(texts_of_view(report.rows - len(batch.texts), batch.texts))
            if on_rows is not None:
                on_rows(report.rows, time.perf_counter() - started)
        found.rows, found.skipped, found.not_asked = report.rows, dict(report.skipped), report.not_asked
        keys_file.flush()
        states_file.flush()
        counts = _distinct_by_state(keys_file, states_file)
    found.distinct = int(counts.sum())
    found.cached, found.reusable, found.coarser_rows, found.remote = (
        int(counts[state == _OF_ALL].sum()) for state in (_CACHED, _REUSABLE, _COARSER, _REMOTE)
    )
    codes = np.arange(len(counts))
    for place in range(len(holdings)):
        own = codes >> (_STATE_BITS * place) & _STATES - 1
        held = Held(int(counts[own == _CACHED].sum()), int(counts[own == _REUSABLE].sum()))
        found.outputs = (*found.outputs, held)
    found.seconds = time.perf_counter() - started
    return found


def _spool(handle: BinaryIO, data: bytes) -> None:
    try:
        handle.write(data)
    except OSError as error:
        raise explain_os_error(error, Path(tempfile.gettempdir())) from error


def _distinct_by_state(keys_file: BinaryIO, states_file: BinaryIO) -> NDArray[np.int64]:
    """Return how many distinct texts there are in each state."""
    keys = np.memmap(keys_file, dtype=KEY_DTYPE, mode="r")
    states = np.memmap(states_file, dtype=np.uint8, mode="r")
    first = first_occurrences(list(_parts(keys)))
    counts = np.zeros(len(_OF_ALL), dtype=np.int64)
    for start in range(0, len(states), _PART_ROWS):
        rows = slice(start, start + _PART_ROWS)
        counts += np.bincount(states[rows][first[rows]], minlength=len(counts))
    return counts


def _parts(keys: KeyArray) -> Iterator[KeyArray]:
    for start in range(0, len(keys), _PART_ROWS):
        yield keys[start : start + _PART_ROWS]
