"""One shard: an immutable Arrow IPC file of (key, vector, tokens, truncated), named by its bytes' sha256.

Contract, codec, row count and format version travel inside, in the schema's metadata. Nothing that differs
between two runs of the same build (times, machine names) goes in, so the same rows give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from embedcache.codecs import CODECS, Codec
from embedcache.contract import Contract
from embedcache.errors import CacheFormatError, CorruptCacheError
from embedcache.fsio import canonical_json, commit, sha256_file, temporary_sibling
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray
from embedcache.store.base import VectorBatch

if TYPE_CHECKING:
    import pyarrow as pa

SHARD_VERSION = 1
_METADATA_KEY = b"embedcache"


@dataclass(frozen=True)
class Shard:
    """An opened shard; its arrays are views of the memory-mapped file.

    Attributes:
        path: the file.
        contract: the contract of its vectors.
        codec: how they are stored.
        provenance: what may have changed their last bits.
        keys: dtype ``V16``, shape (n,).
        stored: the codec's dtype, shape (n, d).
        tokens: int32, shape (n,).
        truncated: bool, shape (n,).
    """

    path: Path
    contract: Contract
    codec: Codec
    provenance: Mapping[str, object]
    keys: KeyArray
    stored: NDArray[np.floating]
    tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]


def _schema(contract: Contract, codec: Codec, rows: int, provenance: Mapping[str, object]) -> pa.Schema:
    import pyarrow as pa

    header = {
        "version": SHARD_VERSION,
        "contract": contract.to_json(),
        "codec": codec.name,
        "rows": rows,
        "provenance": dict(provenance),
    }
    return pa.schema(
        [
            pa.field("key", pa.binary(KEY_BYTES), nullable=False),
            pa.field("vector", codec.arrow_type(contract.dimension), nullable=False),
            pa.field("tokens", pa.int32(), nullable=False),
            pa.field("truncated", pa.bool_(), nullable=False),
        ],
        metadata={_METADATA_KEY: canonical_json(header)},
    )


def write_shard(folder: Path, contract: Contract, codec: Codec, batch: VectorBatch) -> Path:
    """Write ``batch`` as one shard into ``folder`` and return its path.

    Raises:
        StorageError: if the folder cannot be written; no half-written shard is left under a shard's name.
    """
    import pyarrow as pa

    rows = len(batch.keys)
    schema = _schema(contract, codec, rows, batch.provenance)
    keys = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(KEY_BYTES), rows, [None, pa.py_buffer(batch.keys.tobytes())]
    )
    columns = [keys, codec.encode(batch.vectors), pa.array(batch.tokens), pa.array(batch.truncated)]
    with temporary_sibling(folder / "shard.arrow") as temporary:
        with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            writer.write_batch(pa.record_batch(columns, schema=schema))
        target = folder / f"{sha256_file(temporary)}.arrow"
        commit(temporary, target)
    return target


def open_shard(path: Path) -> Shard:
    """Open a shard and check that its parts fit together.

    The digest in its name is not checked here, which would read every byte.

    Raises:
        CorruptCacheError: if the file is no shard, or its header and its columns disagree.
        CacheFormatError: if a newer version of embedcache wrote it.
    """
    import pyarrow as pa

    def corrupt(reason: str) -> CorruptCacheError:
        return CorruptCacheError(
            f"shard {path} is damaged ({reason}): delete it and build again to encode its rows anew"
        )

    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path), "r"))
        header = json.loads((reader.schema.metadata or {})[_METADATA_KEY])
        if header["version"] > SHARD_VERSION:
            raise CacheFormatError(
                f"shard {path} has format version {header['version']}, this embedcache reads up to "
                f"{SHARD_VERSION}: upgrade embedcache"
            )
        contract, codec, rows = (
            Contract.from_json(header["contract"]),
            CODECS[header["codec"]],
            header["rows"],
        )
        if type(rows) is not int or rows < 1:
            raise ValueError(f"its header promises {rows!r} rows")
        provenance = {**header["provenance"]}
        schema = _schema(contract, codec, rows, provenance)
        if reader.num_record_batches != 1:
            raise ValueError(f"{reader.num_record_batches} record batches, expected 1")
        batch = reader.get_batch(0)
        batch.validate(full=True)
    except CacheFormatError:
        raise
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
        reason = str(error).splitlines()[0] if str(error) else ""
        raise corrupt(f"{type(error).__name__}: {reason}") from error
    if not batch.schema.equals(schema, check_metadata=False):
        raise corrupt("its columns are not those its header promises")
    gaps = sum(column.null_count for column in [*batch.columns, batch.column("vector").values])
    if batch.num_rows != rows or gaps:
        raise corrupt(f"{batch.num_rows} rows with {gaps} gaps, its header promises {rows} without")
    key_column = batch.column("key")
    raw = np.frombuffer(
        key_column.buffers()[1], dtype=KEY_DTYPE, count=rows, offset=key_column.offset * KEY_BYTES
    )
    return Shard(
        path=path,
        contract=contract,
        codec=codec,
        provenance=provenance,
        keys=raw,
        stored=codec.view(batch.column("vector")),
        tokens=batch.column("tokens").to_numpy(),
        truncated=batch.column("truncated").to_numpy(zero_copy_only=False),
    )
