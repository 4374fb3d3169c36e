"""Shard: an immutable Arrow IPC file of vectors by key, named by its bytes' sha256.

Contract, codec, row count, measured error and format version lie in the schema's metadata. Nothing that
differs between two runs of the same build goes in, so the same rows give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass as document

from embedcache.arrow_file import read_batch
from embedcache.codecs import CODEC_NAMES, Codec, Stored, pq
from embedcache.contract import Contract
from embedcache.errors import CacheFormatError, CorruptCacheError
from embedcache.fsio import canonical_json, parsed_json
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray
from embedcache.store.base import VectorBatch

if TYPE_CHECKING:
    import pyarrow as pa

SHARD_VERSION = 2
_METADATA_KEY = b"embedcache"

FindCodec = Callable[[str, "str | None"], Codec]
"""Gives the codec of a name and, for ``pq``, the digest of its codebook."""


@lru_cache(maxsize=16, typed=True)
def _shared_contract(**fields: object) -> Contract:
    """Return a contract by its fields: one object for all of its shards."""
    return Contract.from_json(fields)


@document(frozen=True, config=ConfigDict(strict=True, extra="forbid", allow_inf_nan=False))
class ShardHeader:
    """Metadata of a shard.

    Attributes:
        contract: the contract of its vectors.
        codec: name of the codec they are stored with.
        codebook: sha256 of the codebook they need, for ``pq``.
        rows: number of rows.
        provenance: facts that may have changed their last bits.
        error: loss of the codec, measured when they were stored: ``mean_cosine`` and ``worst_cosine``.
    """

    contract: Contract
    codec: str
    codebook: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None
    rows: Annotated[int, Field(ge=1, lt=1 << 63)]
    provenance: dict[str, str | int | float | bool | None]
    error: dict[str, float]

    def to_json(self) -> dict[str, object]:
        """Return the header as a JSON object."""
        return {"version": SHARD_VERSION, **vars(self), "contract": self.contract.to_json()}

    @classmethod
    def from_json(cls, value: object) -> ShardHeader:
        """Read a header back.

        Raises:
            CacheFormatError: if another version of embedcache wrote it.
            KeyError, TypeError, ValueError: if it is damaged.
        """
        if not isinstance(value, dict):
            raise TypeError(f"its header is a {type(value).__name__}, expected an object")
        version = value.pop("version")
        if version != SHARD_VERSION:
            raise CacheFormatError(
                f"found format version {repr(version)[:40]}, this embedcache reads version {SHARD_VERSION}: "
                "upgrade embedcache, or build the cache again"
            )
        header = cls(**{**value, "contract": _shared_contract(**value["contract"])})
        if header.codec not in CODEC_NAMES or (header.codec == pq.NAME) != (header.codebook is not None):
            raise ValueError(f"its codec is {header.codec[:40]!r} and its codebook {header.codebook}")
        if header.error.keys() != {"mean_cosine", "worst_cosine"}:
            raise ValueError("its error is not the mean and the worst cosine")
        return header


@dataclass(frozen=True)
class Shard:
    """An opened shard; its arrays are views of the memory-mapped bytes.

    Attributes:
        name: sha256 of its bytes, in hexadecimal.
        where: its place, for messages.
        bytes: its size.
        header: its metadata.
        codec: codec of its rows.
        keys: dtype ``V16``, shape (n,).
        stored: the vectors as the codec stores them.
        tokens: int32, shape (n,).
        truncated: bool, shape (n,).
    """

    name: str
    where: str
    bytes: int
    header: ShardHeader
    codec: Codec
    keys: KeyArray
    stored: Stored
    tokens: NDArray[np.int32]
    truncated: NDArray[np.bool_]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.keys)

    @property
    def row(self) -> tuple[str, str, int]:
        """Name, codec and rows, as an index lists them."""
        return self.name, self.header.codec, len(self)


def _schema(codec: Codec, dimension: int) -> pa.Schema:
    return _shared_schema(codec.dtype, codec.width(dimension), codec.has_scale)


@lru_cache(maxsize=64)
def _shared_schema(dtype: np.dtype[Any], width: int, has_scale: bool) -> pa.Schema:
    import pyarrow as pa

    element = pa.from_numpy_dtype(dtype)
    scale = [pa.field("scale", pa.float32(), nullable=False)] if has_scale else []
    return pa.schema(
        [
            pa.field("key", pa.binary(KEY_BYTES), nullable=False),
            pa.field("vector", pa.list_(element, width), nullable=False),
            *scale,
            pa.field("tokens", pa.int32(), nullable=False),
            pa.field("truncated", pa.bool_(), nullable=False),
        ]
    )


def stored_shard(
    contract: Contract, codec: Codec, stored: Stored, rows: VectorBatch | Shard, error: Mapping[str, float]
) -> tuple[str, pa.Buffer]:
    """Return name and bytes of a shard of encoded rows: the same for the same rows.

    Args:
        contract: the contract of the vectors.
        codec: the codec of ``stored``.
        stored: the vectors as the codec stores them.
        rows: keys, tokens, truncated and provenance; its vectors are not read.
        error: loss of the codec, for the header.
    """
    import pyarrow as pa

    provenance = rows.header.provenance if isinstance(rows, Shard) else rows.provenance
    header = ShardHeader(contract, codec.name, codec.codebook, len(rows.keys), dict(provenance), dict(error))  # type: ignore[arg-type]
    metadata = {_METADATA_KEY: canonical_json(header.to_json())}
    schema = _schema(codec, contract.dimension).with_metadata(metadata)
    keys = [None, pa.py_buffer(rows.keys.tobytes())]
    flat = pa.array(stored.vector.reshape(-1), type=schema.field("vector").type.value_type)
    columns = [
        pa.FixedSizeBinaryArray.from_buffers(pa.binary(KEY_BYTES), len(rows.keys), keys),
        pa.FixedSizeListArray.from_arrays(flat, stored.vector.shape[1]),
        *([] if stored.scale is None else [pa.array(stored.scale)]),
        pa.array(rows.tokens),
        pa.array(rows.truncated),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    data = sink.getvalue()
    return hashlib.sha256(data).hexdigest(), data


def open_shard(data: pa.Buffer, name: str, where: str, find_codec: FindCodec) -> Shard:
    """Open a shard and check that its parts fit together.

    Its digest is not taken here, which would read every byte.

    Raises:
        CorruptCacheError: if the bytes are not a shard, or its header and its columns disagree; also what
            ``find_codec`` raises.
        CacheFormatError: if another version of embedcache wrote it.
    """
    with _damage_in(where):
        batch = read_batch(data)
        header = ShardHeader.from_json(parsed_json((batch.schema.metadata or {})[_METADATA_KEY]))
    # A damaged codebook is no damage to the shard.
    codec = find_codec(header.codec, header.codebook)
    with _damage_in(where):
        if not batch.schema.equals(_schema(codec, header.contract.dimension), check_metadata=False):
            raise ValueError("its columns are not those its header promises")
        batch.validate(full=True)
        gaps = sum(column.null_count for column in [*batch.columns, batch.column("vector").values])
        if batch.num_rows != header.rows or gaps:
            raise ValueError(f"{batch.num_rows} rows with {gaps} gaps, its header promises {header.rows}")
    keys = batch.column("key")
    return Shard(
        name=name,
        where=where,
        bytes=data.size,
        header=header,
        codec=codec,
        keys=np.frombuffer(keys.buffers()[1], KEY_DTYPE, header.rows, keys.offset * KEY_BYTES),
        stored=Stored(
            batch.column("vector").values.to_numpy().reshape(header.rows, -1),
            batch.column("scale").to_numpy() if codec.has_scale else None,
        ),
        tokens=batch.column("tokens").to_numpy(),
        truncated=batch.column("truncated").to_numpy(zero_copy_only=False),
    )


@contextmanager
def _damage_in(where: str) -> Iterator[None]:
    """Turn faults in the bytes of a shard into an error that names it."""
    import pyarrow as pa

    try:
        yield
    except CacheFormatError as error:
        raise CacheFormatError(f"shard {where}: {error}") from error
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError, OverflowError, MemoryError) as error:
        raise damaged_shard(where, error) from error


def damaged_shard(where: str, reason: Exception | str) -> CorruptCacheError:
    """Return the error for a damaged shard."""
    if isinstance(reason, ValidationError):
        first = reason.errors()[0]
        reason = f"{'.'.join(map(str, first['loc']))[:80]!r}: {first['msg']}"
    lines = str(reason).splitlines()
    text = next(iter(lines), type(reason).__name__)[:200]
    return CorruptCacheError(f"shard {where} is damaged ({text}): 'embedcache repair' encodes its rows again")
