"""Part of a corpus: an immutable Arrow IPC file of rows, named by the sha256 of its bytes.

Where a part ends and its bytes depend on the rows alone, so the same rows give the same files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from embedcache.arrow_file import read_batch
from embedcache.errors import CorruptCacheError, UnreadableError, first_line
from embedcache.fsio import file_state, map_regular, sha256_file
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray

PART_ROWS = 65536
PART_BYTES = 128 << 20
"""A part ends before the row whose text, id and label would bring it past this many bytes of UTF-8."""

ORIGINAL = "original"
TEXT_TYPE = "large_string"
COLUMN_TYPES = {ORIGINAL: (TEXT_TYPE,), "id": (TEXT_TYPE,), "label": (TEXT_TYPE, "int64", "double")}
"""Columns that a corpus may have beside ``row`` and ``key``, and the Arrow types of each."""

STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
"""Configuration of documents: nothing is converted, and unknown fields are refused."""

# Digests become file names: anything else could lead out of the folder.
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 63)]


@dataclass(frozen=True, config=STRICT)
class Part:
    """File of a corpus as the description names it: sha256 of its bytes, and number of rows."""

    sha256: Digest
    rows: Annotated[int, Field(ge=1, le=PART_ROWS)]

    @property
    def file_name(self) -> str:
        """Name of the file in the corpus's folder."""
        return f"{self.sha256}.arrow"


def part_schema(types: Mapping[str, str]) -> pa.Schema:
    """Return the schema of a part whose columns beside ``row`` and ``key`` have these ``types``."""
    import pyarrow as pa

    fields = {"row": pa.int64(), "key": pa.binary(KEY_BYTES)}
    fields |= {name: pa.type_for_alias(types[name]) for name in COLUMN_TYPES if name in types}
    return pa.schema([pa.field(name, type_, nullable=False) for name, type_ in fields.items()])


def part_bytes(first_row: int, columns: Mapping[str, pa.Array], types: Mapping[str, str]) -> pa.Buffer:
    """Return the file of a part: ``columns`` are ``key`` and those of ``types``, of one length."""
    import pyarrow as pa

    numbered = {**columns, "row": pa.array(np.arange(first_row, first_row + len(columns["key"])))}
    schema = part_schema(types)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.record_batch([numbered[name] for name in schema.names], schema=schema))
    return sink.getvalue()


def spelled_values(values: Sequence[object]) -> bytes:
    """Return values of a column of ids or labels as its digest takes them."""
    return "".join(f"{value!r}\n" for value in values).encode()


class PartCutter:
    """Cut a stream of columns into parts."""

    def __init__(self) -> None:
        self._pieces: list[Mapping[str, pa.Array]] = []
        self._rows = self._bytes = 0

    def add(self, columns: Mapping[str, pa.Array]) -> Iterator[dict[str, pa.Array]]:
        """Take rows, and yield the columns of each part that is full."""
        self._keep(columns)
        if self._rows < PART_ROWS and self._bytes <= PART_BYTES:
            return
        pending = self._joined()
        while (rows := _fitting(pending)) < len(pending["key"]) or rows == PART_ROWS:
            # Of a slice, more than its own bytes would be written; concatenation copies.
            yield _concatenated([{name: column[:rows] for name, column in pending.items()}])
            pending = {name: column[rows:] for name, column in pending.items()}
        self._keep(pending)

    def rest(self) -> Iterator[dict[str, pa.Array]]:
        """Yield the columns of the last part, if any rows are left for one."""
        if self._rows:
            yield self._joined()

    def _keep(self, columns: Mapping[str, pa.Array]) -> None:
        self._pieces.append(columns)
        self._rows += len(columns["key"])
        self._bytes += int(_text_bytes(columns).sum())

    def _joined(self) -> dict[str, pa.Array]:
        """Return all that is kept, as one piece, and keep nothing."""
        pieces, self._pieces, self._rows, self._bytes = self._pieces, [], 0, 0
        return _concatenated(pieces)


def _concatenated(pieces: Sequence[Mapping[str, pa.Array]]) -> dict[str, pa.Array]:
    import pyarrow as pa

    return {name: pa.concat_arrays([piece[name] for piece in pieces]) for name in pieces[0]}


def _text_bytes(columns: Mapping[str, pa.Array]) -> NDArray[np.int64]:
    """Return the bytes of text in each row."""
    import pyarrow.compute as pc

    sizes = np.zeros(len(columns["key"]), dtype=np.int64)
    for column in columns.values():
        if str(column.type) == TEXT_TYPE:
            sizes += pc.binary_length(column).to_numpy()
    return sizes


def _fitting(columns: Mapping[str, pa.Array]) -> int:
    """Return the number of first rows that fit into one part; a row larger than a part is one by itself."""
    sizes = _text_bytes(columns)
    fitting = int(np.searchsorted(np.cumsum(sizes), PART_BYTES, side="right"))
    return min(max(fitting, 1), PART_ROWS, len(sizes))


def open_part(folder: Path, part: Part, types: Mapping[str, str]) -> pa.RecordBatch:
    """Map a part into memory and compare it with ``part`` and ``types``.

    Its digest is taken and its content validated once a process, and again where the file has changed. A text
    that is not the one its key was taken of would be encoded, or trained on, as if it were; offsets that lead
    outside the file would end the process.

    Raises:
        CorruptCacheError: if it is missing, damaged, a link, or of other rows or columns.
    """
    import pyarrow as pa

    path = folder / part.file_name
    try:
        batch = read_batch(map_regular(path))
        if not batch.schema.equals(part_schema(types)):
            raise ValueError(f"columns {batch.schema.names}, not of the names and types expected")
        if batch.num_rows != part.rows:
            raise ValueError(f"{batch.num_rows} rows, expected {part.rows}")
        state = file_state(path)
        if _sound.get(path.absolute()) != state:
            batch.validate(full=True)
            if any(column.null_count for column in batch.columns):
                raise ValueError("gaps in its columns")
            if sha256_file(path) != part.sha256:
                raise ValueError("its bytes are not those that its name is the digest of")
            _sound[path.absolute()] = state
    # Lengths in a damaged header can be absurd.
    except UnreadableError:
        raise
    except (pa.ArrowException, OSError, ValueError, MemoryError, OverflowError) as error:
        raise damaged(path, error) from error
    return batch


def damaged(path: Path, error: BaseException) -> CorruptCacheError:
    """Return the error that a file in the folder of a corpus or a view is damaged."""
    reason = first_line(error)
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])).encode("unicode_escape").decode()[:80]
        reason = f"{where}: {first['msg']}".removeprefix(": ")
    folder = path.parent
    cache = folder.parents[3] if folder.parent.name == "views" else folder.parents[1]
    return CorruptCacheError(f"{path} is damaged ({reason}): run 'embedcache repair --cache {cache}'")


# State of the files that were found sound.
_sound: dict[Path, list[int]] = {}


def key_view(column: pa.Array) -> KeyArray:
    """Return a column of keys as an array of dtype ``V16`` over the same memory."""
    if not len(column):
        return np.empty(0, dtype=KEY_DTYPE)
    return np.frombuffer(
        column.buffers()[1], dtype=KEY_DTYPE, count=len(column), offset=column.offset * KEY_BYTES
    )


def key_column(keys: KeyArray) -> pa.Array:
    """Return ``keys`` as the column of a part."""
    import pyarrow as pa

    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(KEY_BYTES), len(keys), [None, pa.py_buffer(keys.tobytes())]
    )
