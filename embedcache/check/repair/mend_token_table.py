"""Mending a teacher's token embeddings: read again from its model."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from embedcache.check.findings import Kind, reason
from embedcache.check.repair.mending import IDENTICAL, NOT_REPAIRED, RIGHT, TO_ENCODE, Mending
from embedcache.check.repair.reencode import ShardMaker
from embedcache.errors import EmbedCacheError
from embedcache.teacher.token_embeddings import token_table_of

_KIND = Kind.TABLE.value


def mend_token_table(mending: Mending, maker: ShardMaker, path: Path) -> None:
    """Bring back the token embeddings of a teacher.

    Args:
        mending: the repair.
        maker: has the teacher.
        path: the file.
    """
    place = mending.inside(path)
    if mending.dry_run:
        mending.done(place, _KIND, TO_ENCODE, "read again from the teacher's model; no row is encoded")
        return
    before = b""
    with suppress(OSError), path.open("rb") as handle:
        before = handle.read(1 << 14)
    try:
        token_table_of(maker.encoder.teacher).write(path, maker.contract)
        with path.open("rb") as handle:
            header = handle.read(int.from_bytes(handle.read(8), "little"))
            sha256 = json.loads(header)["__metadata__"]["sha256"]
    except EmbedCacheError as error:
        what = "or delete it: 'embedcache build' with --token-embeddings adds it again"
        mending.done(place, _KIND, NOT_REPAIRED, f"{reason(error)}; {what}")
        return
    # What is left of the header proves what the rest was.
    outcome = IDENTICAL if sha256.encode() in before else RIGHT
    mending.done(place, _KIND, outcome, "read again from the teacher's model")
