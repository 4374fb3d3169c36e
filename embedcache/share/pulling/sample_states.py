"""What is known of shards that came from a remote, and how a comparison changes it.

The cache keeps a note for each teacher and remote (:class:`embedcache.sample_notes.SampleNote`). It says in
which of three states a shard of the teacher is:

- known: it is not compared again;
- bad: a comparison found vectors of another teacher in it, or it contradicts vectors that were here before;
- open, which is neither: the next pull or run that can compare it does.

An open shard may be *earlier*: it was here before what comes now. Known and earlier shards are what the
shards that come are compared with, and they do not become bad by that.

The transitions:

- A pull or run begins and no bad shard is left in the cache: no shard is bad any more.
- A pull begins: shards that are the cache's own become known. Not so if the note says ``pending``: then an
  earlier pull has left open shards, and they cannot be told from the cache's own.
- A pull begins: open shards that are not from the remote become earlier; so do all that are open if the cache
  has no note at all yet, but for what runs have fetched.
- A shard arrives: it is open, and not earlier.
- An open shard that is not earlier contradicts one that is, or a known one: it becomes bad.
- Open shards are compared, and the vectors are the teacher's: those with texts here become known.
- They are compared, and the vectors are not the teacher's: those in which the sample shows it become bad, and
  a pull compares the rest again. If that goes on to the last sample, all of the rest become bad. Open shards
  that are earlier and not from the remote are compared by themselves.
- They cannot be compared, because the model or the texts are missing or the pull was killed: they stay open.
- Somebody pulls without a comparison (``--no-sample-check``): all shards here become known. What this remote
  lists of them is no longer bad, whichever remote it was bad from.
- Somebody deletes shards: they are nothing any more, and are open if they come again.
- A pull ends: what is open becomes earlier, but for what somebody else has added meanwhile. The note says
  ``pending`` if any shard here is not known.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from embedcache.check.verify.deep import BAD
from embedcache.sample_notes import SampleNote


def begun(
    note: SampleNote, here: Collection[str], own: Collection[str], streamed: Collection[str]
) -> SampleNote:
    """Return a note when a pull begins.

    Args:
        note: the note.
        here: the teacher's shards in the cache.
        own: those of them that need no comparison by this note and have not come from the remote.
        streamed: those that were fetched for runs.
    """
    here, own = frozenset(here), frozenset(own) - note.bad
    earlier = note.earlier & here | own
    is_copied = bool(note.bad) and note == SampleNote(note.verdict, bad=note.bad)
    if note == SampleNote() or is_copied:
        # Nothing was pulled from there yet, or the notes are lost: either way they were here before.
        earlier = here - note.bad - frozenset(streamed)
    if note.pending:
        return replace(note, earlier=earlier - note.known)
    known = note.known & here | own
    return replace(note, known=known, earlier=earlier - known, pending=True)


def ended(note: SampleNote, here: Collection[str], others: Collection[str]) -> SampleNote:
    """Return a note when a pull ends.

    Args:
        note: the note.
        here: the teacher's shards in the cache.
        others: those of them that somebody else has added meanwhile.
    """
    unknown = frozenset(here) - note.known
    earlier = note.earlier | unknown - frozenset(others)
    return replace(note, pending=bool(unknown), earlier=earlier - note.known - note.bad)


def kept(note: SampleNote, here: Collection[str]) -> SampleNote:
    """Return a note when somebody keeps the shards that are ``here``, whatever they are."""
    return SampleNote(note.verdict, note.known | frozenset(here), note.bad - frozenset(here))


def found_good(note: SampleNote, shards: Collection[str], verdict: str) -> SampleNote:
    """Return a note after a comparison that found the teacher's vectors.

    Args:
        note: the note.
        shards: what was compared.
        verdict: what came out.
    """
    return replace(note, verdict=BAD if note.bad else verdict, known=note.known | frozenset(shards))


def found_bad(note: SampleNote, shards: Collection[str]) -> SampleNote:
    """Return a note after a comparison that found other vectors than the teacher's in ``shards``."""
    return replace(note, verdict=BAD, bad=note.bad | frozenset(shards))
