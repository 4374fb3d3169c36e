"""One shard: an immutable Arrow IPC file of vectors by key, named by its bytes' sha256.

Contract, codec, row count, measured error and format version travel inside, in the schema's metadata. Nothing
that differs between two runs of the same build (times, machine names) goes in, so the same rows give the same
bytes. A shard is bytes first: it may lie in a file of its own or inside another one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

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
_ERROR_FIELDS = {"mean_cosine", "worst_cosine"}

FindCodec = Callable[[str, "str | None"], Codec]
"""Gives the codec of a name and, for ``pq``, the digest of its codebook."""


@dataclass(frozen=True)
class ShardHeader:
    """What a shard says about itself.

    Attributes:
        contract: the contract of its vectors.
        codec: the name of the codec they are stored with.
        codebook: sha256 of the codebook they need, for ``pq``.
        rows: how many there are.
        provenance: what may have changed their last bits.
        error: what the codec lost, measured when they were stored: ``mean_cosine`` and ``worst_cosine``.
    """

    contract: Contract
    codec: str
    codebook: str | None
    rows: int
    provenance: Mapping[str, object]
    error: Mapping[str, float]

    def to_json(self) -> dict[str, object]:
        """Return the header as a JSON object."""
        return {
            "version": SHARD_VERSION,
            "contract": self.contract.to_json(),
            "codec": self.codec,
            "codebook": self.codebook,
            "rows": self.rows,
            "provenance": dict(self.provenance),
            "error": dict(self.error),
        }

    @classmethod
    def from_json(cls, value: object) -> ShardHeader:
        """Read a header back.

        Raises:
            CacheFormatError: if another version of embedcache wrote it.
            KeyError, TypeError, ValueError: if it is damaged.
        """
        if not isinstance(value, dict):
            raise TypeError(f"its header is a {type(value).__name__}, expected an object")
        version = value["version"]
        if version != SHARD_VERSION:
            raise CacheFormatError(_version_advice(version))
        rows, codec, codebook = value["rows"], value["codec"], value["codebook"]
        provenance, error = value["provenance"], value["error"]
        if type(rows) is not int or rows < 1:
            raise ValueError(f"its header promises {repr(rows)[:40]} rows")
        if not isinstance(codec, str) or codec not in CODEC_NAMES:
            raise ValueError(f"its codec is {repr(codec)[:40]}, expected one of {', '.join(CODEC_NAMES)}")
        if not isinstance(codebook, str if codec == pq.NAME else type(None)):
            raise TypeError(f"its codec is {codec} and its codebook {str(codebook)[:80]!r}")
        if not isinstance(provenance, dict) or not isinstance(error, dict):
            raise TypeError("its provenance or its error is no object")
        if any(isinstance(one, (dict, list)) for one in provenance.values()):
            raise TypeError("its provenance is more than a list of fields")
        if error.keys() != _ERROR_FIELDS or not all(type(x) is float and isfinite(x) for x in error.values()):
            raise ValueError(f"its error is {str(error)[:80]}, expected {', '.join(sorted(_ERROR_FIELDS))}")
        contract = Contract.from_json(value["contract"])
        if contract.dimension < 1:
            raise ValueError(f"its vectors have {str(contract.dimension)[:20]} dimensions")
        header = cls(contract, codec, codebook, rows, provenance, error)
        # Text that no file can hold is refused here, where it is not yet in anybody's way.
        canonical_json(header.to_json())
        return header


@dataclass(frozen=True)
class Shard:
    """An opened shard; its arrays are views of the memory-mapped bytes.

    Attributes:
        name: sha256 of its bytes, in hexadecimal.
        where: its place, for messages.
        bytes: how many bytes it has.
        header: what it says about itself.
        codec: the codec its rows are stored with.
        keys: dtype ``V16``, shape (n,).
        stored: the rows' vectors as the codec keeps them.
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


def _schema(codec: Codec, dimension: int) -> pa.Schema:
    import pyarrow as pa

    element = pa.from_numpy_dtype(codec.dtype)
    scale = [pa.field("scale", pa.float32(), nullable=False)] if codec.has_scale else []
    return pa.schema(
        [
            pa.field("key", pa.binary(KEY_BYTES), nullable=False),
            pa.field("vector", pa.list_(element, codec.width(dimension)), nullable=False),
            *scale,
            pa.field("tokens", pa.int32(), nullable=False),
            pa.field("truncated", pa.bool_(), nullable=False),
        ]
    )


def shard_bytes(
    header: ShardHeader,
    codec: Codec,
    keys: KeyArray,
    stored: Stored,
    tokens: NDArray[np.int32],
    truncated: NDArray[np.bool_],
) -> tuple[str, pa.Buffer]:
    """Return a shard's name and bytes: the same for the same rows, wherever and whenever it is called."""
    import pyarrow as pa

    metadata = {_METADATA_KEY: canonical_json(header.to_json())}
    schema = _schema(codec, header.contract.dimension).with_metadata(metadata)
    flat = pa.array(stored.vector.reshape(-1), type=schema.field("vector").type.value_type)
    columns = [
        pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(KEY_BYTES), len(keys), [None, pa.py_buffer(keys.tobytes())]
        ),
        pa.FixedSizeListArray.from_arrays(flat, stored.vector.shape[1]),
        *([] if stored.scale is None else [pa.array(stored.scale)]),
        pa.array(tokens),
        pa.array(truncated),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    data = sink.getvalue()
    return hashlib.sha256(data).hexdigest(), data


def stored_shard(
    contract: Contract, codec: Codec, stored: Stored, rows: VectorBatch | Shard, error: Mapping[str, float]
) -> tuple[str, pa.Buffer]:
    """Return the name and the bytes of a shard of encoded rows.

    Args:
        contract: the contract of the vectors.
        codec: the codec of ``stored``.
        stored: the vectors as the codec keeps them.
        rows: keys, tokens, truncated and provenance; its vectors are not read.
        error: what the codec lost, for the header.
    """
    provenance = rows.header.provenance if isinstance(rows, Shard) else rows.provenance
    header = ShardHeader(contract, codec.name, codec.codebook, len(rows.keys), dict(provenance), dict(error))
    return shard_bytes(header, codec, rows.keys, stored, rows.tokens, rows.truncated)


def open_shard(data: pa.Buffer, name: str, where: str, find_codec: FindCodec) -> Shard:
    """Open a shard and check that its parts fit together.

    Its digest is not taken here, which would read every byte.

    Raises:
        CorruptCacheError: if the bytes are no shard, or its header and its columns disagree; also what
            ``find_codec`` raises.
        CacheFormatError: if another version of embedcache wrote it.
    """
    with _told_of(where):
        batch = read_batch(data)
        header = ShardHeader.from_json(parsed_json((batch.schema.metadata or {})[_METADATA_KEY]))
    # Of a codebook that is damaged the shard is not to blame.
    codec = find_codec(header.codec, header.codebook)
    with _told_of(where):
        if not batch.schema.equals(_schema(codec, header.contract.dimension), check_metadata=False):
            raise ValueError("its columns are not those its header promises")
        batch.validate(full=True)
        gaps = sum(column.null_count for column in [*batch.columns, batch.column("vector").values])
        if batch.num_rows != header.rows or gaps:
            raise ValueError(f"{batch.num_rows} rows with {gaps} gaps, its header promises {header.rows}")
    key_column = batch.column("key")
    return Shard(
        name=name,
        where=where,
        bytes=data.size,
        header=header,
        codec=codec,
        keys=np.frombuffer(
            key_column.buffers()[1],
            dtype=KEY_DTYPE,
            count=header.rows,
            offset=key_column.offset * KEY_BYTES,
        ),
        stored=Stored(
            batch.column("vector").values.to_numpy().reshape(header.rows, -1),
            batch.column("scale").to_numpy() if codec.has_scale else None,
        ),
        tokens=batch.column("tokens").to_numpy(),
        truncated=batch.column("truncated").to_numpy(zero_copy_only=False),
    )


@contextmanager
def _told_of(where: str) -> Iterator[None]:
    """Turn what is wrong with the bytes of a shard into an error that names it."""
    import pyarrow as pa

    try:
        yield
    except CacheFormatError as error:
        raise CacheFormatError(f"shard {where}: {error}") from error
    except (pa.ArrowException, KeyError, TypeError, ValueError, OSError, OverflowError, MemoryError) as error:
        raise damaged_shard(where, error) from error


def damaged_shard(where: str, reason: Exception | str) -> CorruptCacheError:
    """Return the error for a shard that is not what it should be."""
    text = reason
    if isinstance(reason, Exception):
        text = f"{type(reason).__name__}: {next(iter(str(reason).splitlines()), '')[:200]}"
    return CorruptCacheError(
        f"shard {where} is damaged ({text}): 'embedcache repair' encodes its rows anew from the corpus"
    )


def _version_advice(version: object) -> str:
    newer = isinstance(version, int) and version > SHARD_VERSION
    advice = "upgrade embedcache" if newer else "build the cache again"
    found = f"found format version {repr(version)[:40]}"
    return f"{found}, this embedcache reads version {SHARD_VERSION}: {advice}"
