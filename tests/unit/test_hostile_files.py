"""Shards, corpora and codebooks from a stranger: what they claim and point at is believed once checked."""

from __future__ import annotations

import io
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hostile_helpers import (
    EVERYTHING,
    VECTORS,
    Fires,
    file_of,
    judge,
    one,
    received,
    renamed,
    reseal,
    rewritten,
)


def shard_of(cache: Path) -> Path:
    return one(cache, "teachers/*/shards/*.arrow")


# Shards


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_columns_that_could_unpack_to_anything_are_refused(tmp_path: Path, codec: str) -> None:
    cache = received(tmp_path)
    zeros = 40 << 20

    def much(batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.set_column(2, "tokens", pa.array(np.zeros(zeros, np.int8))[: len(batch)])

    wide = pa.record_batch([pa.array(np.zeros(zeros, np.int64))], names=["key"])
    path = rewritten(shard_of(cache), columns=much, compression=codec)
    renamed(path, file_of(wide, codec))
    judge(cache, EVERYTHING).assert_refused(VECTORS, "is damaged", "compressed", "repair")


@pytest.mark.parametrize(
    "metadata",
    [
        {b"embedcache": b"[" + b"[]," * 1_000_000 + b"0]"},
        {b"embedcache": b"9" * 2_000_000},
        {str(number).encode(): b"x" * 100 for number in range(20_000)},
    ],
    ids=["json", "number", "many"],
)
def test_an_absurdly_large_header_is_not_read(tmp_path: Path, metadata: dict[bytes, bytes]) -> None:
    cache = received(tmp_path)
    rewritten(shard_of(cache), metadata=metadata)
    judge(cache).assert_refused(VECTORS, "its headers have", "repair")


def test_a_file_of_a_hundred_thousand_columns_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path)
    columns = [pa.array([0], pa.int8())] * 100_000
    many = pa.RecordBatch.from_arrays(columns, names=[str(number) for number in range(len(columns))])
    renamed(shard_of(cache), file_of(many))
    judge(cache).assert_refused(VECTORS, "its headers have", "repair")


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"rows": 10**18}, "its header promises"),
        ({"rows": "9" * 100_000}, "its header promises"),
        ({"codec": "x" * 100_000}, "its codec is"),
        ({"codec": "pq"}, "its codec is pq"),
        ({"codec": "pq", "codebook": "../../../outside"}, "no sha256"),
        ({"provenance": {"a": [[1]]}}, "its provenance"),
        ({"provenance": {"a": "\ud800"}}, "surrogates"),
        ({"error": {"mean_cosine": "1", "worst_cosine": 1.0}}, "its error"),
        ({"error": {}}, "its error"),
        ({"contract": {"weights": "\n" * 1000}}, "a contract with the fields"),
        ({"version": 10**1000}, "format version"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_header_that_claims_absurd_things_is_refused(
    tmp_path: Path, header: dict[str, Any], why: str
) -> None:
    cache = received(tmp_path)
    rewritten(shard_of(cache), **header)
    judgement = judge(cache)
    judgement.assert_refused(VECTORS, why)
    assert judgement.damage != []


@pytest.mark.parametrize("dimension", [0, -1, 2**31 - 1, 10**20])
def test_an_absurd_width_in_a_shard_is_refused(tmp_path: Path, dimension: int) -> None:
    cache = received(tmp_path)
    shard = shard_of(cache)
    contract = json.loads(one(cache, "teachers/*/contract.json").read_text())
    rewritten(shard, contract={**contract, "dimension": dimension})
    judgement = judge(cache)
    judgement.assert_refused(VECTORS, "is damaged", "repair")
    assert len(judgement.damage) == 1


def test_the_pickle_of_an_extension_type_is_not_read(tmp_path: Path) -> None:
    cache = received(tmp_path)

    def extended(batch: pa.RecordBatch) -> pa.RecordBatch:
        extension = {
            b"ARROW:extension:name": b"arrow.py_extension_type",
            b"ARROW:extension:metadata": pickle.dumps(Fires(tmp_path / "fired")),
        }
        schema = pa.schema([field.with_metadata(extension) for field in batch.schema], batch.schema.metadata)
        return pa.RecordBatch.from_arrays(batch.columns, schema=schema)

    rewritten(shard_of(cache), columns=extended)
    judge(cache)
    assert not (tmp_path / "fired").exists()


def test_a_shard_whose_name_lies_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path)
    first, second = sorted(cache.glob("teachers/*/shards/*"))
    content = first.read_bytes()
    shutil.copy(second, first)
    second.write_bytes(content)
    judgement = judge(cache, EVERYTHING)
    judgement.assert_refused(VECTORS, "its bytes are not those its name is the sha256 of", "repair")
    assert len(judgement.damage) == 2


# Corpora


def test_a_part_whose_offsets_lead_outside_the_file_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path)
    part = one(cache, "corpora/words/*.arrow")
    batch = pa.ipc.open_file(pa.BufferReader(part.read_bytes())).get_batch(0)
    offsets = batch.column("original").buffers()[1].to_pybytes()
    absurd = (2**40).to_bytes(8, "little")
    data = part.read_bytes().replace(offsets[8:16] + offsets[16:24], absurd + offsets[16:24])
    named = renamed(part, data)
    reseal(cache / "corpora/words/corpus.json", lambda value: value["parts"][0].update(sha256=named.stem))
    judgement = judge(cache, EVERYTHING)
    judgement.assert_refused({"texts", "query"}, "is damaged", "--replace")
    assert len(judgement.damage) == 1


def test_a_part_compressed_to_nothing_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path)
    part = one(cache, "corpora/words/*.arrow")
    batch = pa.ipc.open_file(pa.BufferReader(part.read_bytes())).get_batch(0)
    named = renamed(part, file_of(batch, "zstd"))
    reseal(cache / "corpora/words/corpus.json", lambda value: value["parts"][0].update(sha256=named.stem))
    judge(cache, EVERYTHING).assert_refused(
        {"texts", "info", "query", "build"}, "is damaged", "compressed", "--replace"
    )


# Codebooks


def npy_with(header: str) -> bytes:
    text = header.encode().ljust(118 - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    "content",
    [
        pickle.dumps(["a pickle"]),
        npy_with("{'descr': '<f4', 'fortran_order': False, 'shape': (9999999, 256, 4), }"),
        npy_with("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + pickle.dumps(["a pickle"]),
        npy_with("__import__('os').mkdir('fired')"),
        npy_with("[" * 100),
        b"\x93NUMPY\x03\x00\xff\xff\xff\x7f",
    ],
    ids=["pickle", "shape", "objects", "code", "deep", "long"],
)
def test_a_codebook_that_is_none_is_refused(tmp_path: Path, content: bytes) -> None:
    cache = received(tmp_path, "pq")
    codebook = renamed(one(cache, "teachers/*/codebooks/*.npy"), content)
    for shard in list(cache.glob("teachers/*/shards/*")):
        rewritten(shard, codebook=codebook.stem)
    judgement = judge(cache)
    judgement.assert_refused(VECTORS, str(codebook), "copy it again")
    assert judgement.damage != []


def test_objects_in_a_codebook_are_not_unpickled(tmp_path: Path) -> None:
    cache = received(tmp_path, "pq")
    content = io.BytesIO()
    np.save(content, np.array([Fires(tmp_path / "fired")], dtype=object), allow_pickle=True)
    codebook = renamed(one(cache, "teachers/*/codebooks/*.npy"), content.getvalue())
    for shard in list(cache.glob("teachers/*/shards/*")):
        rewritten(shard, codebook=codebook.stem)
    judge(cache, EVERYTHING).assert_refused(VECTORS, str(codebook), "copy it again")
    assert not (tmp_path / "fired").exists()
