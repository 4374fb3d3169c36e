"""Mending codebooks of ``pq``: learnt again from the texts they were learnt from, those of the first shard.

Codes say nothing without their codebook. Where learning again gives another one, because another library
computed the vectors, every shard that needs it is encoded again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from embedcache.check.findings import Kind, reason
from embedcache.check.repair.lost_keys import LostShard, keys_by_elimination
from embedcache.check.repair.mending import IDENTICAL, NOT_REPAIRED, RIGHT, TO_ENCODE, Mending
from embedcache.check.repair.reencode import ShardMaker
from embedcache.check.repair.salvage_lmdb import salvage, write_store
from embedcache.check.texts import sound_keys
from embedcache.check.verify.shards import open_without_codebook
from embedcache.codecs import pq
from embedcache.errors import EmbedCacheError, InputError
from embedcache.fsio import remove_file, write_bytes
from embedcache.key_index import KeyIndex
from embedcache.keys import KeyArray
from embedcache.store import Shard, VectorBatch

_KIND = Kind.CODEBOOK.value


def mend_codebook(mending: Mending, maker: ShardMaker, path: Path, lost: Sequence[LostShard]) -> None:
    """Bring back a codebook, or else the shards that need it.

    Args:
        mending: the repair.
        maker: makes the teacher's shards.
        path: the codebook.
        lost: the teacher's shards that are damaged themselves.
    """
    users = [shard for shard in maker.sound if shard.header.codebook == path.stem]
    if mending.dry_run:
        what = "learnt again of the first shard's texts; all its shards are encoded again where it differs"
        mending.done(mending.inside(path), _KIND, TO_ENCODE, what, sum(map(len, users)))
        return
    maker.meter.begin("encode")
    trained: list[pq.PQCodec] = []
    rows = 0
    try:
        for keys in _first_rows(maker, users, lost):
            if len(keys) < pq.LEAST_TRAINING_ROWS:
                continue
            rows += len(keys)
            trained.append(pq.train(maker.encode(keys, keep=True).vectors))
            if trained[-1].codebook == path.stem:
                pq.save(path.parent, trained[-1])
                mending.done(mending.inside(path), _KIND, IDENTICAL, "learnt again", rows)
                return
        if not trained:
            raise InputError("none of the texts it was learnt from is there")
        pq.save(path.parent, trained[0])
        _encode_again(maker, users, trained[0])
        remove_file(path)
    except EmbedCacheError as error:
        mending.done(mending.inside(path), _KIND, NOT_REPAIRED, reason(error))
        return
    rows += sum(map(len, users))
    detail = f"learnt again as {trained[0].codebook[:12]}…; its {len(users)} shards are encoded again"
    mending.done(mending.inside(path), _KIND, RIGHT, detail, rows)


def _first_rows(maker: ShardMaker, users: Sequence[Shard], lost: Sequence[LostShard]) -> Iterator[KeyArray]:
    """Yield the rows the codebook may have been learnt from: those of the first shard a build made."""
    if users:
        yield from (shard.keys for shard in _first_shards(maker, users))
    yield from (one.keys for one in lost if one.keys is not None and maker.has_texts(one.keys))
    # The shard it was learnt from may be one of those that tell nothing any more.
    if not users or any(one.keys is None for one in lost):
        missing = next(keys_by_elimination(maker.corpora, maker.sound, ()), None)
        if missing is not None:
            yield from (missing[:rows] for rows in maker.rows_of(lost, len(missing)))


def _first_shards(maker: ShardMaker, users: Sequence[Shard]) -> list[Shard]:
    """Return the shards that hold the first rows of each corpus: a build learns from its first shard."""
    starts = KeyIndex(np.concatenate([shard.keys[:1] for shard in users]))
    found: dict[str, Shard] = {}
    for corpus in maker.corpora:
        for _, keys in sound_keys(corpus):
            places = starts.locate(keys)
            here = places[places >= 0]
            if len(here):
                first = users[int(here[0])]
                found.setdefault(first.name, first)
                break
    return list(found.values()) or list(users[:1])


def _encode_again(maker: ShardMaker, users: Sequence[Shard], codec: pq.PQCodec) -> None:
    """Put shards of another codebook in the place of those that cannot be read any more."""
    folder = maker.cache.teacher_folder(maker.contract)
    file, container = folder / "vectors.mdb", maker.folder_shards()
    stored = salvage(file)[0] if file.is_file() else None
    for shard in users:
        encoded = maker.encode(shard.keys)
        batch = VectorBatch(
            shard.keys, encoded.vectors, encoded.tokens, encoded.truncated, maker.encoder.provenance
        )
        made = maker.stored(batch, codec)
        if stored is None:
            write_bytes(container.path(made.name), memoryview(made.data))
            container.remove(shard.name)
        else:
            stored[made.name] = made.data
            del stored[shard.name]
        maker.sound.remove(shard)
        maker.add_sound(open_without_codebook(made.data, made.name, str(container.path(made.name))))
    container.finish()
    if stored is not None:
        write_store(file, stored)
