"""Vectors that a sample of a pull has found bad are not pushed on."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from embedcache.cache import Cache
from embedcache.check.findings import Kind
from embedcache.errors import InputError
from embedcache.sample_notes import SampleNotes, bad_shards
from embedcache.share.pushing.selection import Selection
from embedcache.share.remote.remote import Remote
from embedcache.sizes import counted


def refuse_bad(cache: Cache, selection: Selection) -> None:
    """Refuse a push of vectors that a sample has found bad, whichever remote they came from.

    Raises:
        InputError: if there are such vectors.
    """
    for contract_id, names in _shards(selection).items():
        if bad := bad_shards(cache, contract_id) & names:
            teacher = cache.teacher(contract_id).name
            raise InputError(
                f"{teacher}: {counted(len(bad), 'shard')} came with vectors that a sample found to be "
                "another teacher's, so nothing was sent: take them away with 'embedcache rm teacher "
                f"{teacher}', keep and push them after a pull with --no-sample-check, or choose others with "
                "--teacher"
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
    own = {
        contract_id: (notes.of(contract_id), names & set(sent))
        for contract_id, names in _shards(selection).items()
    }
    notes.add(
        {
            contract_id: replace(note, known=note.known | names)
            for contract_id, (note, names) in own.items()
            # While something is still to be compared, they might be made of that.
            if names and not note.pending
        }
    )


def _shards(selection: Selection) -> dict[str, frozenset[str]]:
    shards: dict[str, set[str]] = {}
    for file in selection.shared:
        if file.entry.kind is Kind.SHARD:
            shards.setdefault(file.entry.teacher, set()).add(file.sha256)
    return {contract_id: frozenset(names) for contract_id, names in shards.items()}
