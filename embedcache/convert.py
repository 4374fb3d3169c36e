"""Make a cache of another store or another codec out of one there is; the one there is stays as it is.

Between ``arrow`` and ``lmdb`` the bytes of every shard are carried over as they are, so going there and back
gives the same files. Another codec re-encodes the stored vectors, without the teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import FLOAT_CODECS, Codec, check_codec_name, get_codec, pq
from embedcache.codecs.quality import measure
from embedcache.corpus.corpus import DESCRIPTION, Corpus, View
from embedcache.corpus.view_record import VIEWS, is_recorded, read_record, write_record
from embedcache.derived import PROJECTION, is_derived, read_projection
from embedcache.errors import InputError
from embedcache.fsio import copy_file, write_sealed_json
from embedcache.store import Shard, ShardStore
from embedcache.teacher.outputs import LOGITS
from embedcache.token_table import TokenTable, table_path

OnShard = Callable[[int, int], None]
"""Called with the number of shards done and their total."""


@dataclass(frozen=True)
class Converted:
    """One teacher of the new cache.

    Attributes:
        teacher: its name.
        rows: its vectors.
        store: ``arrow`` or ``lmdb``.
        codec: how they are stored now.
        bytes_before: size of its shards before.
        bytes_after: size of its shards now.
        worst_cosine: lowest cosine between a vector as it was stored and as it is now.
    """

    teacher: str
    rows: int
    store: str
    codec: str
    bytes_before: int
    bytes_after: int
    worst_cosine: float


def convert(
    source: Cache,
    out: str | Path,
    *,
    teacher: str | None = None,
    store: str | None = None,
    codec: str | None = None,
    on_shard: OnShard | None = None,
) -> list[Converted]:
    """Copy ``source`` to the cache ``out`` with its vectors in another store or codec.

    Corpora come with their views, but for views of rows that they have no longer. Of two vectors of a text
    only the one that is read is stored in another codec. Killed or repeated, it goes on where it stopped.
    Token embeddings are copied as they are.

    Args:
        source: the cache to read.
        out: folder of the cache to write; new, or begun by the same command.
        teacher: convert this one only; default: all.
        store: ``arrow`` or ``lmdb``; default: as it is.
        codec: default: as it is. Logits become no other than floats.
        on_shard: called as shards are done.

    Raises:
        InputError: if ``out`` is the source, or holds the vectors in another store or codec, or another
            corpus or view of the same name.
        CorruptCacheError: if the source, or what is in ``out``, is damaged.
        StorageError: if ``out`` cannot be written.
    """
    if codec is not None:
        check_codec_name(codec)
    place = Path(out).expanduser().resolve()
    if source.folder.resolve() in (place, *place.parents):
        raise InputError(
            f"{out} is the cache to convert, or lies in it: give a new folder; the old one can go then"
        )
    target = Cache.create(out)
    teachers = source.teachers() if teacher is None else [source.teacher(teacher)]
    corpora = source.corpora()
    _refuse_other_corpora(target, corpora)
    for corpus in corpora:
        place = target.corpora_folder / corpus.name
        for part in corpus.parts:
            copy_file(corpus.folder / part.file_name, place / part.file_name)
        write_sealed_json(place / DESCRIPTION, corpus.info.to_json())
        for view in corpus.views():
            _copy_view(view, place / VIEWS / view.name)
    done: dict[str, Converted] = {}
    for one in teachers:
        contract_id = one.contract.id
        target.register_teacher(one.name, one.contract, one.origin)
        if contract_id not in done:
            done[contract_id] = _convert_teacher(source, target, one, store, codec, on_shard)
    return list(done.values())


def _refuse_other_corpora(target: Cache, corpora: Sequence[Corpus]) -> None:
    """Refuse a target that holds another corpus or view by one of the names."""
    there = {corpus.name: corpus.info.digest for corpus in target.corpora()}
    for corpus in corpora:
        if there.get(corpus.name, corpus.info.digest) != corpus.info.digest:
            raise InputError(
                f"{target.folder} holds another corpus called {corpus.name!r}, and would lose it: "
                "give a new folder"
            )
        place = target.corpora_folder / corpus.name
        for view in corpus.views() if corpus.name in there else ():
            folder = place / VIEWS / view.name
            if is_recorded(folder) and read_record(folder) != view.record:
                raise InputError(
                    f"{target.folder} holds another view {view.name!r} of corpus {corpus.name!r}, and would "
                    "lose it: give a new folder"
                )


def _copy_view(view: View, place: Path) -> None:
    for part in view.parts:
        copy_file(view.folder / part.file_name, place / part.file_name)
    write_sealed_json(place / DESCRIPTION, view.info.to_json())
    # Last: it says that the view is there.
    write_record(place, view.record)


def _convert_teacher(
    source: Cache,
    target: Cache,
    teacher: CachedTeacher,
    kind: str | None,
    codec_name: str | None,
    on_shard: OnShard | None,
) -> Converted:
    before = source.store(teacher.contract)
    if teacher.contract.output == LOGITS and codec_name is not None and codec_name not in FLOAT_CODECS:
        # Logits stay floats, see embedcache.build_outputs.codec_of.
        codec_name = before.codec_name
    after = target.store(teacher.contract, codec_name, kind or before.kind)
    target_folder = target.teacher_folder(teacher.contract)
    table = table_path(source.folder, teacher.contract)
    if table.exists():
        TokenTable.read(table, teacher.contract)
        copy_file(table, target_folder / table.name)
    projection = source.teacher_folder(teacher.contract) / PROJECTION
    if is_derived(teacher.contract):
        read_projection(source, teacher)
        copy_file(projection, target_folder / projection.name)
    codec = _codec(before, codec_name, target_folder / "codebooks")
    worst = 1.0
    for number, (shard, own) in enumerate(before.own_rows()):
        if codec is None or _is_kept_so(shard, codec):
            if isinstance(shard.codec, pq.PQCodec):
                pq.save(target_folder / "codebooks", shard.codec)
            after.put_raw(shard.name, before.container.open(shard.name))
        elif own.any():
            # Of a key in two shards one row is read. In one codec the other might come first.
            rows = replace(
                shard, keys=shard.keys[own], tokens=shard.tokens[own], truncated=shard.truncated[own]
            )
            vectors = np.asarray(shard.codec.decode(shard.stored)[own], dtype=np.float32)
            stored = codec.encode(vectors)
            lost = measure(codec, vectors, stored)
            worst = min(worst, lost.worst_cosine)
            after.put_stored(codec, stored, rows, lost.to_json())
        if on_shard is not None:
            on_shard(number + 1, len(before.shards))
    after.finish()
    return Converted(
        teacher.name,
        len(after),
        after.kind,
        after.codec_name,
        before.bytes_on_disk,
        after.bytes_on_disk,
        worst,
    )


def _is_kept_so(shard: Shard, codec: Codec) -> bool:
    return (shard.codec.name, shard.codec.codebook) == (codec.name, codec.codebook)


def _codec(store: ShardStore, name: str | None, codebooks: Path) -> Codec | None:
    """Return the codec to store with; None where every shard keeps its own."""
    if name is None:
        return None
    if name != pq.NAME:
        return get_codec(name)
    if all(shard.codec.name == pq.NAME for shard in store.shards):
        return None
    rows = sum(map(len, store.shards))
    # Spread evenly over the store, the same whenever it is called.
    positions = np.unique(np.linspace(0, rows - 1, min(rows, pq.MOST_TRAINING_ROWS)).astype(np.int64))
    codec = pq.train(store.vectors(positions))
    pq.save(codebooks, codec)
    return codec
