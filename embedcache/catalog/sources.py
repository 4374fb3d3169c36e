"""What the views read: Arrow tables over the mapped files of a cache; nothing is copied or decoded.

A value that all rows of a file share takes no room: its column is a dictionary of one entry, and the zeros
that point to it are shared by all files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import Codec, Stored
from embedcache.contract import Contract
from embedcache.corpus.corpus import Corpus, View
from embedcache.corpus.part import ORIGINAL
from embedcache.fsio import canonical_json
from embedcache.keys import KEY_BYTES
from embedcache.store.shard import Shard
from embedcache.store.store import ShardStore

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class OpenTeacher:
    """One contract of a cache.

    Attributes:
        name: the first of its names; what the views call it.
        names: all of them.
        teacher: as the cache lists it.
        store: its vectors.
    """

    name: str
    names: tuple[str, ...]
    teacher: CachedTeacher
    store: ShardStore


@dataclass(frozen=True)
class ShardTable:
    """Shards that one codec reads.

    Attributes:
        codec: the codec.
        dimension: width of a decoded vector.
        table: ``teacher``, ``contract``, ``key``, ``stored``, ``scale`` where the codec has one, ``tokens``,
            ``truncated``, ``codec``, ``shard``; and ``own`` where the store holds a key twice: whether it
            answers with this row.
    """

    codec: Codec
    dimension: int
    table: pa.Table


def open_teachers(cache: Cache, only: Contract | None = None) -> list[OpenTeacher]:
    """Open the store of each contract, or of one, in the order of their names.

    Raises:
        CorruptCacheError: if a teacher or a shard is damaged.
    """
    named: dict[str, list[CachedTeacher]] = {}
    for teacher in cache.teachers():
        if only is None or teacher.contract == only:
            named.setdefault(teacher.contract.id, []).append(teacher)
    return [
        OpenTeacher(known[0].name, tuple(one.name for one in known), known[0], cache.store(known[0].contract))
        for known in named.values()
    ]


def corpus_table(corpus: Corpus, extra: Callable[[int], Mapping[str, pa.Array]] | None = None) -> pa.Table:
    """Return a corpus as ``corpus``, ``row``, ``key``, ``text``, and ``id`` and ``label`` if it has them.

    Args:
        corpus: the corpus; every column is checked, which reads it once.
        extra: gives further columns of the part of a number.

    Raises:
        CorruptCacheError: if a part is damaged.
    """
    import pyarrow as pa

    names = {"row": "row", "key": "key", "text": ORIGINAL}
    names |= {name: name for name in ("id", "label") if name in corpus.info.columns}
    batches = []
    for number, part in enumerate(corpus.parts):
        columns = {"corpus": _constant(corpus.name, part.rows)}
        columns |= {name: corpus.column(number, stored) for name, stored in names.items()}
        columns |= {} if extra is None else extra(number)
        batches.append(pa.record_batch(columns))
    return pa.Table.from_batches(batches)


def view_table(view: View) -> pa.Table:
    """Return a view of a corpus as ``corpus``, ``view``, ``row``, ``key`` and ``text``.

    Raises:
        CorruptCacheError: if a part is damaged; every column is checked.
    """

    def names(number: int) -> dict[str, pa.Array]:
        rows = view.parts[number].rows
        return {"corpus": _constant(view.of.name, rows), "view": _constant(view.name, rows)}

    return corpus_table(view, names)


def shard_tables(opened: OpenTeacher) -> Iterator[ShardTable]:
    """Yield the vectors of a store, a table for each codec (and codebook) among its shards."""
    import pyarrow as pa

    store = opened.store
    own = [pa.array(rows) for _, rows in store.own_rows()] if store.repeats_keys else None
    groups: dict[tuple[str, str | None], list[int]] = {}
    for number, shard in enumerate(store.shards):
        groups.setdefault((shard.codec.name, shard.codec.codebook), []).append(number)
    for numbers in groups.values():
        batches = []
        for number in numbers:
            shard = store.shards[number]
            columns = {
                "teacher": _constant(opened.name, len(shard)),
                "contract": _constant(store.contract.id, len(shard)),
                "key": _fixed_size_binary(shard.keys, KEY_BYTES),
                "stored": _fixed_size_binary(shard.stored.vector, _row_bytes(shard)),
                "tokens": pa.array(shard.tokens),
                "truncated": pa.array(shard.truncated),
                "codec": _constant(shard.codec.name, len(shard)),
                "shard": _constant(shard.name, len(shard)),
            }
            if shard.stored.scale is not None:
                columns["scale"] = pa.array(shard.stored.scale)
            if own is not None:
                columns["own"] = own[number]
            batches.append(pa.record_batch(columns))
        codec = store.shards[numbers[0]].codec
        yield ShardTable(codec, store.contract.dimension, pa.Table.from_batches(batches))


def decoder(codec: Codec, dimension: int) -> Callable[..., pa.Array]:
    """Return a function from columns ``stored`` (and ``scale``) to a column of float32 vectors."""
    import pyarrow as pa

    width = codec.width(dimension)
    row_bytes = width * codec.dtype.itemsize

    # DuckDB evaluates the annotations, where pyarrow's name is not known.
    def decode(stored: Any, scale: Any) -> Any:
        rows = stored.cast(pa.binary(row_bytes)).combine_chunks()
        raw = np.frombuffer(
            rows.buffers()[1], dtype=codec.dtype, count=len(rows) * width, offset=rows.offset * row_bytes
        )
        scales = None if scale is None else scale.to_numpy()
        vectors = codec.decode(Stored(raw.reshape(len(rows), width), scales))
        flat = vectors.astype(np.float32, copy=False).reshape(-1)
        return pa.FixedSizeListArray.from_arrays(pa.array(flat), dimension)

    return decode if codec.has_scale else lambda stored: decode(stored, None)


def corpora_table(cache: Cache) -> pa.Table:
    """Return one row a corpus: what its description says."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("corpus", pa.string()),
            ("rows", pa.int64()),
            ("parts", pa.int64()),
            ("digest", pa.string()),
            ("has_ids", pa.bool_()),
            ("has_labels", pa.bool_()),
            ("skipped", pa.string()),
        ]
    )
    return pa.Table.from_pylist(
        [
            {
                "corpus": corpus.name,
                "rows": len(corpus),
                "parts": len(corpus.parts),
                "digest": corpus.info.digest,
                "has_ids": corpus.info.has_ids,
                "has_labels": corpus.info.has_labels,
                "skipped": _json(corpus.info.skipped),
            }
            for corpus in cache.corpora()
        ],
        schema,
    )


def teachers_table(teachers: Sequence[OpenTeacher]) -> pa.Table:
    """Return one row a contract: its fields, and how much is stored."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("teacher", pa.string()),
            ("names", pa.list_(pa.string())),
            ("contract", pa.string()),
            ("weights", pa.string()),
            ("tokenizer", pa.string()),
            ("architecture", pa.string()),
            ("pooling", pa.string()),
            ("modules", pa.string()),
            ("prompt", pa.string()),
            ("max_length", pa.int64()),
            ("normalize", pa.bool_()),
            ("dimension", pa.int64()),
            ("output", pa.string()),
            ("truncate_dim", pa.int64()),
            ("vectors", pa.int64()),
            ("shards", pa.int64()),
            ("bytes", pa.int64()),
            ("codec", pa.string()),
            ("store", pa.string()),
            ("origin", pa.string()),
        ]
    )
    return pa.Table.from_pylist([_teacher_row(opened, schema.names) for opened in teachers], schema)


def shards_table(teachers: Sequence[OpenTeacher]) -> pa.Table:
    """Return one row a shard: what its header says, and its size."""
    import pyarrow as pa

    schema = pa.schema(
        [
            ("teacher", pa.string()),
            ("contract", pa.string()),
            ("shard", pa.string()),
            ("rows", pa.int64()),
            ("bytes", pa.int64()),
            ("codec", pa.string()),
            ("codebook", pa.string()),
            ("mean_cosine", pa.float64()),
            ("worst_cosine", pa.float64()),
            ("provenance", pa.string()),
        ]
    )
    rows = [
        {
            "teacher": opened.name,
            "contract": opened.store.contract.id,
            "shard": shard.name,
            "rows": len(shard),
            "bytes": shard.bytes,
            "codec": shard.header.codec,
            "codebook": shard.header.codebook,
            "mean_cosine": _number(shard.header.error.get("mean_cosine")),
            "worst_cosine": _number(shard.header.error.get("worst_cosine")),
            "provenance": _json(shard.header.provenance),
        }
        for opened in teachers
        for shard in opened.store.shards
    ]
    return pa.Table.from_pylist(rows, schema)


def _teacher_row(opened: OpenTeacher, names: Sequence[str]) -> dict[str, Any]:
    store = opened.store
    codecs = sorted({shard.codec.name for shard in store.shards}) or [store.codec_name]
    own = {
        "teacher": opened.name,
        "names": list(opened.names),
        "contract": store.contract.id,
        "vectors": len(store),
        "shards": len(store.shards),
        "bytes": store.bytes_on_disk,
        "codec": ", ".join(codecs),
        "store": store.kind,
        "origin": _json(opened.teacher.origin),
    }
    fields = store.contract.to_json()
    return {name: own[name] if name in own else fields[name] for name in names}


def _row_bytes(shard: Shard) -> int:
    return int(shard.stored.vector.shape[1] * shard.stored.vector.itemsize)


def _fixed_size_binary(values: NDArray[Any], width: int) -> pa.Array:
    import pyarrow as pa

    data = pa.py_buffer(values.view(np.uint8).reshape(-1))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), [None, data])


def _constant(value: str, rows: int) -> pa.Array:
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(_zeros(rows.bit_length()).slice(0, rows), pa.array([value]))


@cache
def _zeros(bits: int) -> pa.Array:
    import pyarrow as pa

    return pa.array(np.zeros(1 << bits, dtype=np.int8))


def _json(value: Mapping[str, object]) -> str:
    return json.dumps(json.loads(canonical_json(value)), ensure_ascii=False)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) else None
