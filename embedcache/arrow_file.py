"""Arrow files of one record batch, read without trusting them.

pyarrow's own file reader goes where the footer points, and unpacks compressed columns before their size
can be seen: a few hostile bytes unpack to more than the memory. Files of a cache are never compressed, so a
batch is only handed to pyarrow once its header says so, and then it is a view of the bytes it came from.
"""

from __future__ import annotations

import struct
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa

_MAGIC = b"ARROW1"
_BEFORE_MESSAGES = 8
# Headers of a cache's files have a few thousand bytes; what megabytes of one unpack to is hundreds.
_LARGEST_HEADER = 1 << 20
# Numbers of the fields in the tables of Arrow's Message.fbs.
_MESSAGE_HEADER, _BATCH_COMPRESSION = 2, 3


def read_batch(data: pa.Buffer) -> pa.RecordBatch:
    """Return the one record batch of the Arrow file ``data``, over the same memory; nothing in it is checked.

    Raises:
        ValueError, OSError, pyarrow.ArrowException: if it is cut off, damaged, compressed, of another number
            of batches, or of absurdly large headers; also OverflowError and MemoryError, for absurd lengths.
    """
    import pyarrow as pa

    if data.size < 2 * _BEFORE_MESSAGES or data[: len(_MAGIC)].to_pybytes() != _MAGIC:
        raise ValueError("it is not an Arrow file")
    if data[data.size - len(_MAGIC) :].to_pybytes() != _MAGIC:
        raise ValueError("it is cut off: the end of an Arrow file is missing")
    messages = list(islice(pa.ipc.MessageReader.open_stream(pa.BufferReader(data[_BEFORE_MESSAGES:])), 3))
    if len(messages) != 2:
        raise ValueError(f"it holds {max(len(messages) - 1, 0)} record batches, expected 1")
    schema, batch = messages
    header_bytes = schema.metadata.size + batch.metadata.size
    if header_bytes > _LARGEST_HEADER:
        raise ValueError(f"its headers have {header_bytes:,} bytes, expected {_LARGEST_HEADER:,} at most")
    if batch.type != "record batch" or _is_compressed(batch.metadata):
        raise ValueError(f"it holds a {batch.type}, expected a record batch that is not compressed")
    return pa.ipc.read_record_batch(batch, pa.ipc.read_schema(schema))


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Return whether a message header, a flatbuffer that Arrow has verified, has compressed columns."""
    header = memoryview(metadata)
    try:
        (message,) = struct.unpack_from("<I", header)
        place = _field(header, message, _MESSAGE_HEADER)
        (offset,) = struct.unpack_from("<I", header, place)
        return _field(header, place + offset, _BATCH_COMPRESSION) > 0
    except struct.error as error:
        raise ValueError("the header of its record batch is damaged") from error


def _field(header: memoryview, table: int, number: int) -> int:
    """Return the offset of a field in a flatbuffer table; 0 if the table lacks it."""
    (back,) = struct.unpack_from("<i", header, table)
    (size,) = struct.unpack_from("<H", header, table - back)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", header, table - back + entry)
    return table + int(offset) if offset else 0
