"""A shard's bytes follow from its rows; opening one believes nothing that its columns do not bear out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedcache.codecs import Codec, get_codec
from embedcache.contract import Contract
from embedcache.errors import CacheFormatError, CorruptCacheError, InputError
from embedcache.fsio import sha256_file
from embedcache.keys import key_array
from embedcache.store.base import VectorBatch
from embedcache.store.shard import SHARD_VERSION, Shard, open_shard, stored_shard
from embedcache.testing import example_contract

ROWS = 3
ERROR = {"mean_cosine": 1.0, "worst_cosine": 1.0}
GOLDEN = {
    "float32": "e846d079c07aa8239713e94da127520c5aef92e5fdb05ed6c60f738fcfe8b27d",
    "float16": "4d2654082a0b748472a8e6263ef2c9229d62b85f713e560bc42d3db1f4fc8e7a",
    "int8": "9464a14316da5904d5059f76101caad1371fb97cafc60025570f35fceaeedb81",
}


def batch(shift: float = 0.0) -> VectorBatch:
    vectors = (np.arange(ROWS * 8, dtype=np.float32).reshape(ROWS, 8) + np.float32(shift)) / 8
    return VectorBatch(
        keys=key_array(["a", "b", "c"]),
        vectors=vectors,
        tokens=np.array([3, 4, 64], np.int32),
        truncated=np.array([False, False, True]),
        provenance={"compute_dtype": "float32"},
    )


def write(folder: Path, contract: Contract, codec_name: str, rows: VectorBatch) -> Path:
    codec = get_codec(codec_name)
    name, data = stored_shard(contract, codec, codec.encode(rows.vectors), rows, ERROR)
    path = folder / f"{name}.arrow"
    path.write_bytes(data)
    return path


def written(folder: Path, codec: str = "float16") -> Path:
    folder.mkdir(exist_ok=True)
    return write(folder, example_contract(), codec, batch())


def opened(path: Path) -> Shard:
    def find_codec(name: str, codebook: str | None) -> Codec:
        return get_codec(name)

    return open_shard(pa.memory_map(str(path)).read_buffer(), path.stem, str(path), find_codec)


@pytest.fixture(scope="module")
def shard_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("shard"))


def rewritten(path: Path, target: Path, *, batches: int = 1, columns: Any = None, **header: Any) -> Path:
    """Write the shard ``path`` anew with changes to its header or columns."""
    source = pa.ipc.open_file(path).get_batch(0)
    if columns is not None:
        source = columns(source)
    claims = {**json.loads(pa.ipc.open_file(path).schema.metadata[b"embedcache"]), **header}
    whole = source.replace_schema_metadata({b"embedcache": json.dumps(claims).encode()})
    with pa.OSFile(str(target), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
        for _ in range(batches):
            writer.write_batch(whole)
    return target


@pytest.mark.parametrize("codec", GOLDEN)
def test_a_shard_comes_back(tmp_path: Path, codec: str) -> None:
    shard = opened(written(tmp_path, codec))
    assert shard.header.contract == example_contract()
    assert shard.codec.name == shard.header.codec == codec
    assert shard.header.provenance == {"compute_dtype": "float32"}
    assert shard.header.error == ERROR
    assert (shard.keys == batch().keys).all()
    assert shard.stored.vector.dtype == np.dtype(codec)
    np.testing.assert_allclose(shard.codec.decode(shard.stored), batch().vectors, atol=0.02)
    assert shard.tokens.tolist() == [3, 4, 64]
    assert shard.truncated.tolist() == [False, False, True]


@pytest.mark.parametrize("codec", GOLDEN)
def test_the_bytes_of_a_shard_never_change(tmp_path: Path, codec: str) -> None:
    # Builds are compared, resumed and shared by these names: another value here needs a new SHARD_VERSION.
    path = written(tmp_path, codec)
    assert path.name == f"{GOLDEN[codec]}.arrow"
    assert sha256_file(path) == GOLDEN[codec]


def test_anything_that_differs_gives_another_name(tmp_path: Path) -> None:
    plain = batch()
    names = {
        write(tmp_path, contract, codec, rows).name
        for contract, codec, rows in (
            (example_contract(), "float16", plain),
            (example_contract(), "float32", plain),
            (example_contract(pooling="cls"), "float16", plain),
            (example_contract(), "float16", batch(shift=1)),
            (
                example_contract(),
                "float16",
                VectorBatch(plain.keys, plain.vectors, plain.tokens, plain.truncated),
            ),
        )
    }
    assert len(names) == 5
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_vector_that_does_not_fit_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="float16"):
        write(tmp_path, example_contract(), "float16", batch(shift=1e7))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "header",
    [
        {"rows": ROWS + 1},
        {"rows": ROWS - 1},
        {"rows": 0},
        {"rows": float(ROWS)},
        {"rows": None},
        {"codec": "float32"},
        {"codec": "int4"},
        {"codec": ["float16"]},
        {"contract": {}},
        {"contract": None},
        {"contract": example_contract(dimension=9).to_json()},
        {"contract": {**example_contract().to_json(), "dimension": "8"}},
        {"contract": {**example_contract().to_json(), "dimension": float("nan")}},
        {"provenance": None},
        {"provenance": [1]},
        {"provenance": {"a": float("nan")}},
        {"error": None},
        {"error": {"worst_cosine": 1.0}},
        {"error": {**ERROR, "best_cosine": 1.0}},
        {"error": {**ERROR, "mean_cosine": "1.0"}},
        {"error": {**ERROR, "mean_cosine": 1e999}},
        {"codebook": 7},
        {"codebook": "0" * 64},
        {"codec": "pq"},
    ],
    ids=str,
)
def test_a_header_that_claims_something_else_is_found(
    shard_path: Path, tmp_path: Path, header: dict[str, Any]
) -> None:
    path = rewritten(shard_path, tmp_path / "0.arrow", **header)
    with pytest.raises(CorruptCacheError, match=r"is damaged .*embedcache repair") as caught:
        opened(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_newer_version_asks_for_an_upgrade(shard_path: Path, tmp_path: Path) -> None:
    path = rewritten(shard_path, tmp_path / "0.arrow", version=SHARD_VERSION + 1, contract={"new": "fields"})
    with pytest.raises(
        CacheFormatError, match=rf"format version {SHARD_VERSION + 1}, .*: upgrade embedcache"
    ):
        opened(path)


def with_null(source: pa.RecordBatch) -> pa.RecordBatch:
    tokens = pa.array([3, None, 64], pa.int32())
    return source.set_column(2, pa.field("tokens", pa.int32(), nullable=False), tokens)


def with_wide_tokens(source: pa.RecordBatch) -> pa.RecordBatch:
    return source.set_column(2, pa.field("tokens", pa.int64(), nullable=False), pa.array([3, 4, 64]))


def with_gap_in_a_vector(source: pa.RecordBatch) -> pa.RecordBatch:
    values = pa.array([None, *np.zeros(ROWS * 8 - 1)], pa.float16())
    column = pa.FixedSizeListArray.from_arrays(values, 8)
    return source.set_column(1, pa.field("vector", column.type, nullable=False), column)


@pytest.mark.parametrize(
    "columns",
    [
        with_null,
        with_wide_tokens,
        with_gap_in_a_vector,
        lambda source: source.select(["vector", "key", "tokens", "truncated"]),
        lambda source: source.select(["key", "vector", "tokens"]),
        lambda source: source.slice(0, 0),
    ],
    ids=["null", "type", "gap", "order", "missing", "empty"],
)
def test_columns_that_are_not_those_promised_are_found(
    shard_path: Path, tmp_path: Path, columns: Any
) -> None:
    with pytest.raises(CorruptCacheError, match="is damaged"):
        opened(rewritten(shard_path, tmp_path / "0.arrow", columns=columns))


@pytest.mark.parametrize("batches", [0, 2])
def test_a_shard_is_one_record_batch(shard_path: Path, tmp_path: Path, batches: int) -> None:
    with pytest.raises(CorruptCacheError, match=f"{batches} record batches, expected 1"):
        opened(rewritten(shard_path, tmp_path / "0.arrow", batches=batches))


def test_an_arrow_file_of_somebody_else_is_no_shard(tmp_path: Path) -> None:
    table = pa.table({"key": [1]})
    with pa.OSFile(str(tmp_path / "0.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(CorruptCacheError, match="is damaged"):
        opened(tmp_path / "0.arrow")


@given(st.data())
def test_a_shard_cut_off_anywhere_is_found(shard_path: Path, data: st.DataObject) -> None:
    whole = shard_path.read_bytes()
    path = shard_path.with_name("cut")
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(CorruptCacheError):
        opened(path)


@settings(max_examples=300)
@given(st.data())
def test_a_flipped_bit_is_a_clean_error_or_an_opened_shard(shard_path: Path, data: st.DataObject) -> None:
    damaged = bytearray(shard_path.read_bytes())
    position = data.draw(st.integers(0, len(damaged) - 1))
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    path = shard_path.with_name("flipped")
    path.write_bytes(damaged)
    try:
        shard: Shard = opened(path)
    except (CorruptCacheError, CacheFormatError):
        return
    assert shard.keys.shape == shard.tokens.shape == shard.truncated.shape == (ROWS,)
    assert shard.stored.vector.shape == (ROWS, 8)


def test_compressed_columns_are_refused(shard_path: Path, tmp_path: Path) -> None:
    # A few hostile bytes could unpack to more than the memory.
    source = pa.ipc.open_file(shard_path).get_batch(0)
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    target = tmp_path / "0.arrow"
    with (
        pa.OSFile(str(target), "wb") as sink,
        pa.ipc.new_file(sink, source.schema, options=options) as writer,
    ):
        writer.write_batch(source)
    with pytest.raises(CorruptCacheError, match="compressed"):
        opened(target)


@pytest.mark.parametrize("version", ["2", None, SHARD_VERSION - 1])
def test_an_older_or_senseless_version_asks_for_a_new_build(
    shard_path: Path, tmp_path: Path, version: object
) -> None:
    with pytest.raises(CacheFormatError, match="build the cache again"):
        opened(rewritten(shard_path, tmp_path / "0.arrow", version=version))
