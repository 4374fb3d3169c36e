"""Vectors that a pull has found bad are not pushed on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.errors import InputError
from embedcache.sample_notes import FOUND_BAD, SampleNote, SampleNotes, bad_shards
from embedcache.share.pushing.selection import Selection
from embedcache.share.remote.remote import Remote
from embedcache.sizes import counted


def refuse_bad(cache: Cache, selection: Selection) -> None:
    """Refuse a push of vectors that a pull has found bad, whichever remote they came from.

    Raises:
        InputError: if there are such vectors.
    """
    for contract_id, names in _shards(selection).items():
        if bad := bad_shards(cache, contract_id) & names:
            teacher = cache.teacher(contract_id).name
            raise InputError(
                f"{teacher}: {FOUND_BAD}, in {counted(len(bad), 'shard')}, so nothing was sent: delete "
                f"them with 'embedcache rm teacher {teacher} --bad', keep and push them after a pull with "
                "--no-sample-check from a remote that has them, or choose others with --teacher"
            )


def note_sent(cache: Cache, remote: Remote, selection: Selection, sent: Collection[str]) -> None:
    """Remember that shards are the cache's own, though from now on the remote has them as well.

    Args:
        cache: the cache.
        remote: where they were sent.
        selection: what was pushed.
        sent: digests of the objects that the remote lacked.
    """
    notes = SampleNotes(cache, remote.id)
    for contract_id, names in _shards(selection).items():
        if own := names & set(sent):
            notes.revise(contract_id, partial(_with_own, own))


def _with_own(names: frozenset[str], note: SampleNote) -> SampleNote:
    if note.pending:
        # They might be made of what is still to be compared; but they were here before what comes now.
        return replace(note, earlier=note.earlier | names - note.known - note.bad)
    return replace(note, known=note.known | names)


def _shards(selection: Selection) -> dict[str, frozenset[str]]:
    shards: dict[str, set[str]] = {}
    for file in selection.shared:
        if file.entry.kind is Kind.SHARD:
            shards.setdefault(file.entry.teacher, set()).add(file.sha256)
    return {contract_id: frozenset(names) for contract_id, names in shards.items()}
