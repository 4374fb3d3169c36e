"""What is known of shards that came from a remote, and how a comparison changes it.

The cache keeps a note for each teacher and remote (:class:`embedcache.sample_notes.SampleNote`). It says in
which of three states a shard of the teacher is:

- known: it is not compared again;
- bad: a comparison found vectors of another teacher among those that it arrived with;
- open, which is neither: the next pull or run that can compare it does.

The transitions:

- A pull or run begins and no bad shard is left in the cache: no shard is bad any more.
- A pull begins: shards that are the cache's own become known. Not so if the note says ``pending``: then an
  earlier pull has left open shards, and they cannot be told from the cache's own.
- A shard arrives: it is open.
- Open shards are compared, and the vectors are the teacher's: those with texts here become known.
- They are compared, and the vectors are not the teacher's: of a pull, all open shards become bad; of a run,
  those in which the sample shows it.
- They cannot be compared, because the model or the texts are missing or the pull was killed: they stay open.
- Somebody pulls without a comparison (``--no-sample-check``): all shards here become known.
- A pull ends: the note says ``pending`` if any shard here is not known.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from embedcache.check.verify.deep import BAD
from embedcache.sample_notes import SampleNote


def forget_lost(note: SampleNote, here: Collection[str]) -> SampleNote:
    """Return a note without bad shards if none of them is in the cache any more.

    Shards that arrived with bad ones are bad, too, and may be the teacher's: they may come again.

    Args:
        note: the note.
        here: the teacher's shards in the cache.
    """
    if note.bad and note.bad.isdisjoint(here):
        return replace(note, verdict="", bad=frozenset())
    return note


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
