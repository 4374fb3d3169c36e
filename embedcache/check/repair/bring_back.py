"""Bringing lost shards back: made anew of the rows they had, as far as these can be told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from embedcache.check.findings import Kind, reason
from embedcache.check.repair.cuts import cut, full_shard
from embedcache.check.repair.lost_keys import LostShard, keys_by_elimination, keys_by_index
from embedcache.check.repair.mending import IDENTICAL, NOT_REPAIRED, RIGHT, TO_ENCODE, Mending
from embedcache.check.repair.reencode import Made, ShardMaker
from embedcache.codecs import Codec
from embedcache.errors import EmbedCacheError
from embedcache.keys import KeyArray

Replace = Callable[[LostShard, Made], None]
"""Puts a shard made anew in the place of a lost one."""

_NOT_TOLD = "which texts it held cannot be told, or no corpus has them: build the corpus it was made of again"
_KIND = Kind.SHARD.value


def bring_back(
    mending: Mending,
    maker: ShardMaker,
    lost: Sequence[LostShard],
    replace: Replace,
) -> None:
    """Make lost shards anew.

    Args:
        mending: the repair.
        maker: makes the teacher's shards.
        lost: shards that are damaged or known to be missing.
        replace: puts a shard in the place of a lost one.
    """
    if not lost:
        return
    told = keys_by_index(maker.index_folder, maker.sound, lost, maker.layouts(lost))
    jobs = [(one, _candidates(mending, maker, one, told)) for one in lost]
    unknown, taken = [one for one, candidates in jobs if not candidates], []
    known = [candidates[0] for _, candidates in jobs if candidates]
    missing = _missing(maker, known) if unknown else []
    rows = sum(map(len, known)) + _most_rows(maker, unknown, missing)
    maker.meter.begin("encode", total_rows=rows)
    for one, candidates in jobs:
        if not candidates:
            continue
        try:
            keys = _make(mending, maker, one, candidates, replace)
        except EmbedCacheError as error:
            mending.done(one.path, _KIND, NOT_REPAIRED, reason(error))
            continue
        if keys is None:
            unknown.append(one)
        else:
            taken.append(keys)
    if unknown:
        _by_elimination(mending, maker, unknown, _missing(maker, taken), replace)


def _candidates(
    mending: Mending, maker: ShardMaker, lost: LostShard, told: dict[str, KeyArray]
) -> list[KeyArray]:
    """Return the rows a lost shard may have had, as far as their texts are there, the likeliest first."""
    found: list[KeyArray] = []
    for keys in (told.get(lost.name), lost.keys):
        known = keys is None or any(keys.tobytes() == other.tobytes() for other in found)
        if keys is not None and not known and (_may_come_back(mending) or maker.has_texts(keys)):
            found.append(keys)
    return found


def _may_come_back(mending: Mending) -> bool:
    """Return whether texts that no corpus has would be there if this were no dry run."""
    kinds = (Kind.PART.value, Kind.CORPUS.value, Kind.VIEW_PART.value, Kind.VIEW.value)
    return mending.dry_run and any(mend.kind in kinds for mend in mending.mends)


def _make(
    mending: Mending, maker: ShardMaker, lost: LostShard, candidates: Sequence[KeyArray], replace: Replace
) -> KeyArray | None:
    """Make a lost shard anew of the first candidate that gives its name, else of one that may be right.

    Returns:
        The rows it was made of, None where none of the candidates can be believed.
    """
    if mending.dry_run:
        # All of them, because the first may not give the name.
        mending.done(lost.path, _KIND, TO_ENCODE, "its texts are known", rows=sum(map(len, candidates)))
        return candidates[0]
    right = None
    for keys in candidates:
        made = maker.make(keys, [lost])
        if made.name == lost.name:
            replace(lost, made)
            _tell(mending, lost, made)
            return keys
        # Rows that another shard holds may have come into this one with the damage.
        if right is None and not maker.holds_any(keys):
            right = (keys, made)
    if right is None:
        return None
    replace(lost, right[1])
    _tell(mending, lost, right[1])
    return right[0]


def _by_elimination(
    mending: Mending,
    maker: ShardMaker,
    unknown: Sequence[LostShard],
    missing: Sequence[KeyArray],
    replace: Replace,
) -> None:
    """Make lost shards of unknown rows anew: of the texts that no sound shard holds.

    Args:
        mending: the repair.
        maker: makes the teacher's shards.
        unknown: the lost shards.
        missing: the keys of these texts, in corpus order, those of a corpus at a time.
        replace: puts a shard in the place of a lost one.
    """
    if mending.dry_run:
        _announce(mending, maker, unknown, missing)
        return
    left = {one.name: one for one in unknown}
    spare: list[Made] = []
    try:
        for made in _made_as_before(maker, unknown, missing):
            if made.name in left:
                replace(left[made.name], made)
                _tell(mending, left.pop(made.name), made)
            else:
                spare.append(made)
            # More texts may be without a vector than were lost: of a build that did not end.
            if len(spare) >= len(left):
                break
    except EmbedCacheError as error:
        for one in left.values():
            mending.done(one.path, _KIND, NOT_REPAIRED, reason(error))
        return
    if not left:
        return
    if not spare:
        for one in left.values():
            mending.done(one.path, _KIND, NOT_REPAIRED, _NOT_TOLD)
        return
    # Which of them was which cannot be told any more: all rows come back, in shards of other names.
    for number, made in enumerate(spare):
        replace(list(left.values())[min(number, len(left) - 1)], made)
    for number, one in enumerate(left.values()):
        encoded = 0 if number else sum(made.encoded for made in spare)
        mending.done(one.path, _KIND, RIGHT, f"its rows are in {len(spare)} new shards", encoded)


def _announce(
    mending: Mending, maker: ShardMaker, unknown: Sequence[LostShard], missing: Sequence[KeyArray]
) -> None:
    """Say in a dry run how many rows would be encoded at most."""
    if not missing and not _may_come_back(mending):
        for one in unknown:
            mending.done(one.path, _KIND, NOT_REPAIRED, _NOT_TOLD)
        return
    rows = _most_rows(maker, unknown, missing)
    for number, one in enumerate(unknown):
        mending.done(
            one.path, _KIND, TO_ENCODE, "of the texts that have no vector", rows=0 if number else rows
        )


def _missing(maker: ShardMaker, taken: Sequence[KeyArray]) -> list[KeyArray]:
    """Return the keys that neither sound shards have nor ``taken``, those of a corpus at a time."""
    return [keys for keys in keys_by_elimination(maker.corpora, maker.sound, taken) if len(keys)]


def _most_rows(maker: ShardMaker, lost: Sequence[LostShard], missing: Sequence[KeyArray]) -> int:
    """Return how many rows are encoded at most to make shards of texts without a vector."""
    rows = sum(map(len, missing))
    if not missing or _told_by_size(maker, lost, missing) is not None:
        return rows
    # Every guess is tried on the first shard.
    firsts = {len(missing[0][:guess]) for guess in maker.rows_of(lost, rows)}
    return rows + sum(firsts) - min(firsts)


def _told_by_size(
    maker: ShardMaker, lost: Sequence[LostShard], missing: Sequence[KeyArray]
) -> tuple[int, Codec] | None:
    """Return the rows of a full shard and how it was stored, where the sizes of the lost ones say it."""
    return full_shard([len(keys) for keys in missing], [one.size for one in lost], maker.layouts(lost))


def _made_as_before(
    maker: ShardMaker, lost: Sequence[LostShard], missing: Sequence[KeyArray]
) -> Iterator[Made]:
    """Yield shards of all texts without a vector, cut as the lost ones seem to have been cut."""
    if not missing:
        return
    told = _told_by_size(maker, lost, missing)
    if told is not None:
        yield from (maker.make(keys, lost, told[1]) for keys in cut(missing, told[0]))
        return
    names = {one.name for one in lost}
    tried: dict[int, Made] = {}
    guesses = maker.rows_of(lost, sum(map(len, missing)))
    for rows in guesses:
        first = len(missing[0][:rows])
        if first not in tried:
            tried[first] = maker.make(missing[0][:rows], lost)
        if tried[first].name in names:
            break
    else:
        rows = guesses[0]
    pieces = cut(missing, rows)
    yield tried[len(next(pieces))]
    yield from (maker.make(keys, lost) for keys in pieces)


def _tell(mending: Mending, lost: LostShard, made: Made) -> None:
    if made.name == lost.name:
        how = "carried over again" if made.carried else "encoded again"
        mending.done(lost.path, _KIND, IDENTICAL, how, made.encoded)
    else:
        mending.done(
            lost.path,
            _KIND,
            RIGHT,
            f"encoded again as {made.name[:12]}…: another library, device or setting than the first time",
            made.encoded,
        )
