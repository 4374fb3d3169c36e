"""Opening a shard believes nothing that its columns do not bear out."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedcache.codecs import get_codec
from embedcache.errors import CacheFormatError, CorruptCacheError
from embedcache.store.shard import Shard, open_shard, stored_shard
from embedcache.testing import example_batch, example_contract

BATCH, FLOAT16 = example_batch(["a", "b", "c"]), get_codec("float16")
ERROR = {"mean_cosine": 1.0, "worst_cosine": 0.5}
STORED = stored_shard(example_contract(), FLOAT16, FLOAT16.encode(BATCH.vectors), BATCH, ERROR)[
    1
].to_pybytes()


def opened(data: bytes) -> Shard:
    return open_shard(pa.py_buffer(data), "0" * 64, "the place", lambda name, codebook: get_codec(name))


def with_tokens(values: pa.Array) -> Any:
    field = pa.field("tokens", values.type, nullable=False)
    return lambda source: source.set_column(2, field, values)


def with_gap_in_a_vector(source: pa.RecordBatch) -> pa.RecordBatch:
    column = pa.FixedSizeListArray.from_arrays(pa.array([None, *np.zeros(23)], pa.float16()), 8)
    return source.set_column(1, pa.field("vector", column.type, nullable=False), column)


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ({"rows": 4}, None),
        ({"codec": "float32"}, None),
        ({"codebook": "0" * 64}, None),
        ({"contract": example_contract(dimension=9).to_json()}, None),
        ({"error": {"worst_cosine": 1.0}}, None),
        ({}, with_tokens(pa.array([3, None, 64], pa.int32()))),
        ({}, with_tokens(pa.array([3, 4, 64], pa.int64()))),
        ({}, with_gap_in_a_vector),
        ({}, lambda source: source.select(["vector", "key", "tokens", "truncated"])),
    ],
)
def test_a_header_and_columns_that_disagree_are_damage(header: dict[str, Any], columns: Any) -> None:
    batch = pa.ipc.open_file(STORED).get_batch(0)
    claims = {**json.loads(batch.schema.metadata[b"embedcache"]), **header}
    changed = batch if columns is None else columns(batch)
    changed = changed.replace_schema_metadata({b"embedcache": json.dumps(claims).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, changed.schema) as writer:
        writer.write_batch(changed)
    with pytest.raises(CorruptCacheError, match="the place is damaged"):
        opened(sink.getvalue().to_pybytes())


@settings(max_examples=200)
@given(place=st.integers(0, len(STORED) - 1), bit=st.integers(0, 7))
def test_a_cut_is_found_and_a_flipped_bit_is_a_clean_error_or_a_shard(place: int, bit: int) -> None:
    with pytest.raises(CorruptCacheError):
        opened(STORED[:place])
    damaged = bytearray(STORED)
    damaged[place] ^= 1 << bit
    with suppress(CorruptCacheError, CacheFormatError):
        shard = opened(bytes(damaged))
        assert shard.keys.shape == shard.tokens.shape == shard.truncated.shape == (3,)
        assert shard.stored.vector.shape == (3, 8)
