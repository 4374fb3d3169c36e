"""Tables of a cache: SELECTs over Arrow tables that map its files; vectors are decoded when asked for."""
# ruff: noqa: S608 - names of corpora, views and teachers are letters, digits, '.', '_' and '-'

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from embedcache.cache import Cache, CachedTeacher
from embedcache.codecs import Codec, Stored
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.part import ORIGINAL, key_view
from embedcache.store import ShardStore

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

_COLUMNS = {
    "rows": "corpus VARCHAR, row BIGINT, key BLOB, text VARCHAR, characters BIGINT, id VARCHAR, "
    "label VARCHAR",
    "views": "corpus VARCHAR, view VARCHAR, row BIGINT, key BLOB, text VARCHAR",
    "vectors": "teacher VARCHAR, contract VARCHAR, key BLOB, vector FLOAT[], tokens INTEGER, "
    "truncated BOOLEAN, codec VARCHAR, shard VARCHAR",
    "shards": "teacher VARCHAR, contract VARCHAR, shard VARCHAR, rows BIGINT, bytes BIGINT, codec VARCHAR, "
    "codebook VARCHAR, mean_cosine DOUBLE, worst_cosine DOUBLE, provenance VARCHAR",
    "teachers": "teacher VARCHAR, names VARCHAR[], contract VARCHAR, weights VARCHAR, tokenizer VARCHAR, "
    "architecture VARCHAR, pooling VARCHAR, modules VARCHAR, prompt VARCHAR, max_length BIGINT, "
    "normalize BOOLEAN, dimension BIGINT, output VARCHAR, truncate_dim BIGINT, quantization VARCHAR, "
    "loading VARCHAR, code VARCHAR, "
    "vectors BIGINT, shards BIGINT, bytes BIGINT, codec VARCHAR, store VARCHAR, origin VARCHAR",
    "corpora": "corpus VARCHAR, rows BIGINT, parts BIGINT, digest VARCHAR, has_ids BOOLEAN, "
    "has_labels BOOLEAN, skipped VARCHAR",
}
_SMALL_ROWS, _MOST_SMALL = 1024, 512
"""Rows below which a shard is small, and small shards that stay mapped."""

TABLES: dict[str, dict[str, str]] = {
    table: dict(column.split() for column in columns.split(", ")) for table, columns in _COLUMNS.items()
}
"""Tables, their columns and types. Labels have the type of the corpora's labels, vectors of one width are
arrays of it."""


def create_table(connection: duckdb.DuckDBPyConnection, cache: Cache, table: str) -> None:
    """Add one of ``TABLES`` to a database, as a view of the cache's files.

    Raises:
        CorruptCacheError: if a file of the cache is damaged.
    """
    import pyarrow as pa

    selects: list[str] = []
    if table in _LARGE:
        selects = list(_LARGE[table](connection, cache))
    elif rows := [{name: _plain(value) for name, value in row.items()} for row in _SMALL[table](cache)]:
        columns = ", ".join(f"{name}::{kind} AS {name}" for name, kind in TABLES[table].items())
        connection.register(f"_{table}", pa.Table.from_pylist(rows))
        selects = [f"SELECT {columns} FROM _{table}"]
    nothing = ", ".join(f"NULL::{kind} AS {name}" for name, kind in TABLES[table].items())
    body = " UNION ALL ".join(selects) or f"SELECT {nothing} WHERE false"
    connection.execute(f"CREATE VIEW {table} AS {body}")


def by_contract(cache: Cache) -> list[list[CachedTeacher]]:
    """Return the teachers of each contract, in the order of their names."""
    named: dict[str, list[CachedTeacher]] = {}
    for teacher in cache.teachers():
        named.setdefault(teacher.contract.id, []).append(teacher)
    return list(named.values())


def _rows_arms(connection: duckdb.DuckDBPyConnection, cache: Cache) -> Iterator[str]:
    # UNION ALL reconciles the types of labels: numbers to DOUBLE, anything and text to VARCHAR.
    for number, corpus in enumerate(cache.corpora()):
        connection.register(f"_rows_{number}", corpus_table(corpus))
        id_ = "id" if corpus.info.has_ids else "NULL::VARCHAR AS id"
        label = "label" if corpus.info.has_labels else "NULL AS label"
        columns = f"row, key, text, length(text) AS characters, {id_}, {label}"
        yield f"SELECT '{corpus.name}' AS corpus, {columns} FROM _rows_{number}"


def _views_arms(connection: duckdb.DuckDBPyConnection, cache: Cache) -> Iterator[str]:
    for number, view in enumerate(view for corpus in cache.corpora() for view in corpus.views()):
        connection.register(f"_views_{number}", corpus_table(view))
        names = f"'{view.of.name}' AS corpus, '{view.name}' AS view"
        yield f"SELECT {names}, row, key, text FROM _views_{number}"


def _vectors_arms(connection: duckdb.DuckDBPyConnection, cache: Cache) -> Iterator[str]:
    stores = [(teachers[0], cache.store(teachers[0].contract)) for teachers in by_contract(cache)]
    # Functions on arrays need one width; vectors of several widths fit one column only as lists.
    cast = "" if len({store.contract.dimension for _, store in stores if store.shards}) < 2 else "::FLOAT[]"
    tables = [(teacher, *table) for teacher, store in stores for table in _shard_tables(store)]
    for number, (teacher, codec, table) in enumerate(tables):
        contract = teacher.contract
        decode, result = _decoder(codec, contract.dimension), f"FLOAT[{contract.dimension}]"
        connection.create_function(f"_decode_{number}", decode, ["BLOB", "FLOAT"], result, type="arrow")  # type: ignore[call-overload]
        connection.register(f"_vectors_{number}", table)
        scale = "scale" if codec.has_scale else "0"
        yield (
            f"SELECT '{teacher.name}' AS teacher, '{contract.id}' AS contract, key, "
            f"_decode_{number}(stored, {scale}){cast} AS vector, tokens, truncated, "
            f"'{codec.name}' AS codec, shard FROM _vectors_{number} WHERE own"
        )


def corpus_facts(corpus: Corpus) -> dict[str, object]:
    """Return the row of a corpus in the table ``corpora``."""
    info = corpus.info
    return {
        "corpus": corpus.name,
        "rows": len(corpus),
        "parts": len(corpus.parts),
        "digest": info.digest,
        "has_ids": info.has_ids,
        "has_labels": info.has_labels,
        "skipped": dict(info.skipped),
    }


def teacher_facts(cache: Cache, teachers: Sequence[CachedTeacher]) -> dict[str, object]:
    """Return the row of a contract in the table ``teachers``.

    Args:
        cache: the cache.
        teachers: the teachers of the contract; see ``by_contract``.
    """
    store = cache.store(teachers[0].contract)
    unchecked = sum(cache.unchecked(store).values())
    stated = f"; {unchecked:,} vectors stated, not checked" if unchecked else ""
    return {
        "teacher": teachers[0].name,
        "names": [teacher.name for teacher in teachers],
        "contract": store.contract.id,
        "vectors": len(store),
        "shards": len(store.shards),
        "bytes": store.bytes_on_disk,
        "codec": ", ".join(sorted({shard.codec.name for shard in store.shards})) or store.codec_name,
        "store": store.kind,
        "origin": teachers[0].origin,
        "identity": ("server and canary" if store.contract.is_served else "weights") + stated,
        **vars(store.contract),
    }


def _shards(cache: Cache) -> Iterator[dict[str, object]]:
    for teacher, *_ in by_contract(cache):
        for shard in cache.store(teacher.contract).shards:
            yield {
                "teacher": teacher.name,
                "contract": teacher.contract.id,
                "shard": shard.name,
                "rows": len(shard),
                "bytes": shard.bytes,
                "codec": shard.codec.name,
                "codebook": shard.header.codebook,
                **shard.header.error,
                "provenance": dict(shard.header.provenance),
            }


_LARGE = {"rows": _rows_arms, "views": _views_arms, "vectors": _vectors_arms}
_SMALL: dict[str, Callable[[Cache], Iterable[dict[str, object]]]] = {
    "shards": _shards,
    "teachers": lambda cache: [teacher_facts(cache, teachers) for teachers in by_contract(cache)],
    "corpora": lambda cache: map(corpus_facts, cache.corpora()),
}


def corpus_table(corpus: Corpus, store: ShardStore | None = None) -> pa.Table:
    """Return the rows of a corpus or view, mapped and checked; with tokens and truncation of a store."""
    import pyarrow as pa

    names = {"row": "row", "key": "key", "text": ORIGINAL}
    names |= {name: name for name in ("id", "label") if name in corpus.info.columns}
    batches = []
    for number in range(len(corpus.parts)):
        columns = {name: corpus.column(number, stored) for name, stored in names.items()}
        if store is not None:
            positions = store.locate(key_view(columns["key"]))
            missing = positions < 0
            tokens, truncated = np.zeros(len(missing), np.int32), np.zeros(len(missing), np.bool_)
            tokens[~missing], truncated[~missing] = store.seen(positions[~missing])
            columns["tokens"] = pa.array(tokens, mask=missing)
            columns["truncated"] = pa.array(truncated, mask=missing)
        batches.append(pa.record_batch(columns))
    return pa.Table.from_batches(batches)


def _shard_tables(store: ShardStore) -> Iterator[tuple[Codec, pa.Table]]:
    """Yield the stored rows of each codec (and codebook); ``own`` is false for rows the store never reads.

    Small shards are copied together. Otherwise thousands of files would stay mapped.
    """
    import pyarrow as pa

    batches: defaultdict[Codec, list[pa.RecordBatch]] = defaultdict(list)
    small: defaultdict[Codec, list[pa.RecordBatch]] = defaultdict(list)
    for shard, own in store.own_rows():
        columns = {
            "key": _binary(shard.keys),
            "stored": _binary(shard.stored.vector),
            "tokens": pa.array(shard.tokens),
            "truncated": pa.array(shard.truncated),
            "own": pa.array(own),
            "shard": pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(shard), np.int16)), [shard.name]),
        }
        if shard.stored.scale is not None:
            columns["scale"] = pa.array(shard.stored.scale)
        group = small[shard.codec] if len(shard) < _SMALL_ROWS else batches[shard.codec]
        group.append(pa.record_batch(columns))
        if len(small[shard.codec]) == _MOST_SMALL:
            batches[shard.codec].append(pa.concat_batches(small.pop(shard.codec)))
    for codec in {**batches, **small}:
        yield codec, pa.Table.from_batches([*batches[codec], *small[codec]])


def _binary(values: NDArray[Any]) -> pa.Array:
    """Return the bytes of each row of an array; nothing is copied."""
    import pyarrow as pa

    width = values.nbytes // len(values)
    data = pa.py_buffer(np.ascontiguousarray(values))
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(values), [None, data])


def _decoder(codec: Codec, dimension: int) -> Callable[..., pa.Array]:
    """Return a function from stored rows and their scales to float32 vectors."""
    import pyarrow as pa

    width = codec.width(dimension)
    row_bytes = width * codec.dtype.itemsize

    # DuckDB evaluates annotations, and pyarrow is not a name of this module.
    def decode(stored: Any, scale: Any) -> Any:
        rows = stored.cast(pa.binary(row_bytes)).combine_chunks()
        start = rows.offset * row_bytes
        raw = np.frombuffer(rows.buffers()[1], codec.dtype, len(rows) * width, start).reshape(-1, width)
        vectors = codec.decode(Stored(raw, scale.to_numpy() if codec.has_scale else None))
        flat = pa.array(vectors.astype(np.float32, copy=False).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(flat, dimension)

    return decode


def _plain(value: object) -> object:
    """Return an object as JSON, anything else as it is."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True) if isinstance(value, dict) else value
