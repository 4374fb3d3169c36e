"""What is known of vectors that came from a remote: which were compared, and what came out.

What was found bad must not become good by being written anew. So whoever makes shards of shards leaves bad
ones as they are, hands the note on with them, or refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

from embedcache.cache import Cache
from embedcache.errors import CorruptCacheError, InputError
from embedcache.own_notes import OwnNotes
from embedcache.sizes import counted
from embedcache.store.containers.base import is_shard_name

FOUND_BAD = "a pull found other vectors than the teacher's, or than those that were here before"
"""What marks say of shards, for messages."""

NOTES_WAY_OUT = (
    "'embedcache repair' removes it; then pull from every remote again, which compares what has come from "
    "there once more"
)
"""What to do about a file of these notes that is damaged."""

SAMPLED = "sampled.json"


@dataclass(frozen=True)
class SampleNote:
    """What is known of one teacher's vectors from one remote.

    Attributes:
        verdict: of the last comparison; empty where there was none, or what it found bad is gone.
        known: the shards that need no comparison: they are the cache's own, were compared, or are to be kept.
        bad: the shards in which a comparison has shown other vectors than the teacher's, or that contradict
            what was here before.
        pending: whether a pull has begun of which something may still have to be compared: then every shard
            that is not known does.
        told: tells the state of the cache of which it was last said that it cannot be compared: the model is
            not there, or no texts are to compare by.
        earlier: the shards that are none of these, and that what comes is compared with nevertheless: they
            were here before it, or came and contradicted nothing.
    """

    verdict: str = ""
    known: frozenset[str] = frozenset()
    bad: frozenset[str] = frozenset()
    pending: bool = False
    told: str = ""
    earlier: frozenset[str] = frozenset()

    @classmethod
    def from_json(cls, value: object) -> SampleNote:
        """Read a note back.

        Raises:
            ValueError: if it is none.
        """
        match value:
            case {
                "verdict": str(verdict),
                "known": known,
                "bad": bad,
                "pending": bool(pending),
                "told": str(told),
                **rest,
            }:
                # Older versions did not note those.
                earlier = rest.get("earlier", [])
                return cls(verdict, _names(known), _names(bad), pending, told, _names(earlier))
        raise ValueError("no note on what was compared of a teacher")

    def to_json(self) -> dict[str, object]:
        """Return the note as a JSON object."""
        return {
            "verdict": self.verdict,
            "known": sorted(self.known),
            "bad": sorted(self.bad),
            "pending": self.pending,
            "told": self.told,
            "earlier": sorted(self.earlier),
        }


class SampleNotes(OwnNotes[SampleNote]):
    """The notes on the teachers of one remote, by contract id.

    They vouch only where they were written, so that nobody's cache comes with vectors that are believed: of
    what no note is found, all that the remote has is compared. What they say is bad is bad in copies, too.

    Args:
        cache: the cache.
        remote_id: the id of the remote.

    Attributes:
        remote_id: as it was given.
    """

    def __init__(self, cache: Cache, remote_id: str) -> None:
        self.remote_id = remote_id
        super().__init__(
            cache, f"{remote_id}/{SAMPLED}", SampleNote.from_json, SampleNote.to_json, _suspicion_of
        )

    def of(self, contract_id: str) -> SampleNote:
        """Return what is known of a teacher, also since this object was made."""
        self._take_in()
        return self.get(contract_id) or SampleNote()

    def revise(self, contract_id: str, change: Callable[[SampleNote], SampleNote]) -> SampleNote:
        """Change what is known of a teacher as it stands now, and return it; see :meth:`update`."""
        return self.update(contract_id, lambda note: change(note or SampleNote()))


def all_sample_notes(cache: Cache) -> Iterator[SampleNotes]:
    """Yield the notes on all remotes that a cache has some on."""
    for path in sorted((cache.derived_folder / "remotes").glob(f"*/{SAMPLED}")):
        yield SampleNotes(cache, path.parent.name)


def bad_shards(cache: Cache, contract_id: str) -> frozenset[str]:
    """Return the shards of a teacher, here or gone, that were found bad, whichever remote they came from.

    Raises:
        CorruptCacheError: if a file that says so is there and damaged: they must not pass for good.
    """
    found = frozenset[str]()
    for notes in all_sample_notes(cache):
        if notes.fault:
            raise CorruptCacheError(
                f"{cache.folder}/derived/remotes/{notes.remote_id}/{SAMPLED} is damaged ({notes.fault}), so "
                f"nobody knows which vectors pulls have found bad: {NOTES_WAY_OUT}"
            )
        if (note := notes.get(contract_id)) is not None:
            found |= note.bad
    return found


def forget_lost(note: SampleNote, here: Collection[str]) -> SampleNote:
    """Return a note without bad shards if none of them is in the cache any more: they may come again.

    Not one by one, for of many that came and were bad not all may be wrong: a pull ends after some samples.

    Args:
        note: the note.
        here: the teacher's shards in the cache.
    """
    if note.bad and note.bad.isdisjoint(here):
        return replace(note, verdict="", bad=frozenset())
    return note


def forget_removed(cache: Cache, contract_id: str, here: Callable[[], Collection[str]]) -> None:
    """Note that shards of a teacher were deleted: should they come again, they are compared again.

    That others are bad is forgotten, too, on every remote of which no bad one is left.

    Args:
        cache: the cache that they were of.
        contract_id: their teacher's.
        here: returns the teacher's shards that are still in the cache, or are there again.
    """
    for notes in all_sample_notes(cache):
        if notes.get(contract_id) is not None:
            notes.revise(contract_id, partial(_without_removed, here=here))


def _without_removed(note: SampleNote, here: Callable[[], Collection[str]]) -> SampleNote:
    # Only now, as nobody else writes notes: a pull may have brought shards and marked them meanwhile.
    left = frozenset(here())
    if not left:
        return SampleNote()
    note = forget_lost(note, left)
    return replace(note, known=note.known & left, earlier=note.earlier & left)


def keep_bad(cache: Cache, contract_id: str, names: frozenset[str]) -> None:
    """Note that somebody keeps shards that were found bad, whichever remotes they are bad from."""
    for notes in all_sample_notes(cache):
        if notes.of(contract_id).bad & names:
            notes.revise(contract_id, partial(_with_kept, names=names))


def _with_kept(note: SampleNote, names: frozenset[str]) -> SampleNote:
    kept = note.bad & names
    return replace(note, bad=note.bad - kept, known=note.known | kept)


def carry_bad(source: Cache, target: Cache, contract_id: str, names: Collection[str]) -> None:
    """Note of shards that come unchanged from another cache of this machine what was found bad there.

    Where ``target`` itself has compared what came from the same remote, or somebody there has said to keep
    it, that stands.
    """
    for notes in all_sample_notes(source):
        note = notes.of(contract_id)
        if bad := note.bad & frozenset(names):
            SampleNotes(target, notes.remote_id).revise(contract_id, partial(_with_bad, note, bad))


def _suspicion_of(note: SampleNote) -> SampleNote | None:
    """Return what of a note counts in a copy of its cache: what is bad."""
    return SampleNote(verdict=note.verdict, bad=note.bad) if note.bad else None


def _with_bad(theirs: SampleNote, bad: frozenset[str], note: SampleNote) -> SampleNote:
    fresh = bad - note.known
    return replace(note, verdict=theirs.verdict, bad=note.bad | fresh) if fresh else note


def refuse_to_rewrite(cache: Cache, contract_id: str, teacher: str, names: Collection[str]) -> None:
    """See that no bad shard is among those of which rows are to be written anew, under another name.

    Args:
        cache: the cache that they are of.
        contract_id: their teacher's.
        teacher: its name.
        names: the shards.

    Raises:
        InputError: if one is.
    """
    if bad := bad_shards(cache, contract_id) & frozenset(names):
        raise InputError(
            f"{cache.folder}: rows of {counted(len(bad), 'shard')} of teacher {teacher!r} would be written "
            f"anew and pass for good ones, but in them {FOUND_BAD}: delete those with 'embedcache rm teacher "
            f"{teacher} --bad', or keep them by a pull with --no-sample-check from a remote that has them"
        )


def _names(value: object) -> frozenset[str]:
    if isinstance(value, list) and all(isinstance(name, str) and is_shard_name(name) for name in value):
        return frozenset(value)
    raise ValueError("no names of shards")
