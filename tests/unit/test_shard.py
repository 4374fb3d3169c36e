"""A shard's bytes follow from its rows; opening one believes nothing that its columns do not bear out."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedcache.codecs import get_codec
from embedcache.contract import Contract
from embedcache.errors import CacheFormatError, CorruptCacheError
from embedcache.keys import key_array
from embedcache.store.base import VectorBatch
from embedcache.store.shard import SHARD_VERSION, Shard, open_shard, stored_shard
from embedcache.testing import example_contract

CONTRACT = example_contract()
ROWS = 3
ERROR = {"mean_cosine": 1.0, "worst_cosine": 1.0}
GOLDEN = {
    "float32": "e846d079c07aa8239713e94da127520c5aef92e5fdb05ed6c60f738fcfe8b27d",
    "float16": "4d2654082a0b748472a8e6263ef2c9229d62b85f713e560bc42d3db1f4fc8e7a",
    "int8": "9464a14316da5904d5059f76101caad1371fb97cafc60025570f35fceaeedb81",
}
BATCH = VectorBatch(
    keys=key_array(["a", "b", "c"]),
    vectors=np.arange(ROWS * 8, dtype=np.float32).reshape(ROWS, 8) / 8,
    tokens=np.array([3, 4, 64], np.int32),
    truncated=np.array([False, False, True]),
    provenance={"compute_dtype": "float32"},
)


def stored(
    codec_name: str = "float16", contract: Contract = CONTRACT, batch: VectorBatch = BATCH
) -> tuple[str, pa.Buffer]:
    codec = get_codec(codec_name)
    return stored_shard(contract, codec, codec.encode(batch.vectors), batch, ERROR)


def opened(data: pa.Buffer | bytes) -> Shard:
    return open_shard(pa.py_buffer(data), "0" * 64, "the place", lambda name, codebook: get_codec(name))


def rewritten(
    *, batches: int = 1, columns: Any = None, compression: str | None = None, **header: Any
) -> pa.Buffer:
    """Return a shard written again with changes to its header or columns."""
    source = pa.ipc.open_file(stored()[1]).get_batch(0)
    claims = {**json.loads(source.schema.metadata[b"embedcache"]), **header}
    changed = source if columns is None else columns(source)
    whole = changed.replace_schema_metadata({b"embedcache": json.dumps(claims).encode()})
    sink, options = pa.BufferOutputStream(), pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(sink, whole.schema, options=options) as writer:
        for _ in range(batches):
            writer.write_batch(whole)
    return sink.getvalue()


@pytest.mark.parametrize("codec", GOLDEN)
def test_a_shard_comes_back_and_its_bytes_never_change(codec: str) -> None:
    # Builds are compared, resumed and shared by these names: another value here needs a new SHARD_VERSION.
    name, data = stored(codec)
    assert name == GOLDEN[codec] == hashlib.sha256(data).hexdigest()
    shard = opened(data)
    assert (shard.header.contract, shard.header.error) == (CONTRACT, ERROR)
    assert shard.header.provenance == BATCH.provenance
    assert shard.codec.name == shard.header.codec == codec
    assert shard.keys.tobytes() == BATCH.keys.tobytes()
    np.testing.assert_allclose(shard.codec.decode(shard.stored), BATCH.vectors, atol=0.02)
    assert shard.tokens.tolist() == [3, 4, 64]
    assert shard.truncated.tolist() == [False, False, True]


def test_anything_that_differs_gives_another_name() -> None:
    names = {
        stored()[0],
        stored("float32")[0],
        stored(contract=example_contract(pooling="cls"))[0],
        stored(batch=replace(BATCH, vectors=BATCH.vectors + 1))[0],
        stored(batch=replace(BATCH, provenance={}))[0],
    }
    assert len(names) == 5


@pytest.mark.parametrize(
    "header",
    [
        {"rows": ROWS + 1},
        {"rows": ROWS - 1},
        {"rows": 0},
        {"rows": float(ROWS)},
        {"codec": "float32"},
        {"codec": "int4"},
        {"codec": ["float16"]},
        {"codec": "pq"},
        {"codebook": "0" * 64},
        {"codebook": 7},
        {"contract": {}},
        {"contract": None},
        {"contract": example_contract(dimension=9).to_json()},
        {"contract": {**CONTRACT.to_json(), "dimension": float("nan")}},
        {"provenance": [1]},
        {"provenance": {"a": float("nan")}},
        {"error": None},
        {"error": {"worst_cosine": 1.0}},
        {"error": {**ERROR, "best_cosine": 1.0}},
        {"error": {**ERROR, "mean_cosine": "1.0"}},
        {"error": {**ERROR, "mean_cosine": 1e999}},
    ],
    ids=str,
)
def test_a_header_that_claims_something_else_is_found(header: dict[str, Any]) -> None:
    with pytest.raises(CorruptCacheError, match="the place is damaged") as caught:
        opened(rewritten(**header))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [SHARD_VERSION + 1, SHARD_VERSION - 1, "2", None])
def test_another_version_asks_for_an_upgrade(version: object) -> None:
    with pytest.raises(CacheFormatError, match=r"version .*upgrade"):
        opened(rewritten(version=version, contract={"new": "fields"}))


def with_tokens(values: pa.Array) -> Any:
    field = pa.field("tokens", values.type, nullable=False)
    return lambda source: source.set_column(2, field, values)


def with_gap_in_a_vector(source: pa.RecordBatch) -> pa.RecordBatch:
    values = pa.array([None, *np.zeros(ROWS * 8 - 1)], pa.float16())
    column = pa.FixedSizeListArray.from_arrays(values, 8)
    return source.set_column(1, pa.field("vector", column.type, nullable=False), column)


STRANGE: dict[str, dict[str, Any]] = {
    "null": {"columns": with_tokens(pa.array([3, None, 64], pa.int32()))},
    "type": {"columns": with_tokens(pa.array([3, 4, 64], pa.int64()))},
    "gap": {"columns": with_gap_in_a_vector},
    "order": {"columns": lambda source: source.select(["vector", "key", "tokens", "truncated"])},
    "missing": {"columns": lambda source: source.select(["key", "vector", "tokens"])},
    "no rows": {"columns": lambda source: source.slice(0, 0)},
    "no batch": {"batches": 0},
    "two batches": {"batches": 2},
    # A few hostile bytes could unpack to more than the memory.
    "compressed": {"compression": "zstd"},
}


@pytest.mark.parametrize("changes", STRANGE.values(), ids=STRANGE)
def test_columns_that_are_not_those_promised_are_found(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptCacheError, match="the place is damaged"):
        opened(rewritten(**changes))


@given(st.integers(0, len(stored()[1]) - 1))
def test_a_shard_cut_off_anywhere_is_found(size: int) -> None:
    with pytest.raises(CorruptCacheError):
        opened(stored()[1].to_pybytes()[:size])


@settings(max_examples=300)
@given(st.integers(0, len(stored()[1]) - 1), st.integers(0, 7))
def test_a_flipped_bit_is_a_clean_error_or_an_opened_shard(place: int, bit: int) -> None:
    damaged = bytearray(stored()[1])
    damaged[place] ^= 1 << bit
    with suppress(CorruptCacheError, CacheFormatError):
        shard = opened(bytes(damaged))
        assert shard.keys.shape == shard.tokens.shape == shard.truncated.shape == (ROWS,)
        assert shard.stored.vector.shape == (ROWS, 8)
