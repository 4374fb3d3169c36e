"""What a damaged corpus still says of itself: rows of its parts, and the description those rows make."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.arrow_file import read_batch
from embedcache.check.repair.mending import proves
from embedcache.corpus.columns import ColumnReader
from embedcache.corpus.corpus import DESCRIPTION, CorpusInfo
from embedcache.corpus.part import COLUMN_TYPES, Part, part_bytes, part_schema
from embedcache.corpus.readers import RowBatch
from embedcache.errors import InputError
from embedcache.fsio import read_regular, sha256_file

if TYPE_CHECKING:
    import pyarrow as pa

_SKIPPED = re.compile(rb'"skipped": (\{[^{}]*\})')


@dataclass(frozen=True)
class Described:
    """A description made of a corpus's parts.

    Attributes:
        info: the description.
        is_proven: whether what is left of the damaged one proves that it is the same.
    """

    info: CorpusInfo
    is_proven: bool


def part_out_of_itself(path: Path, first_row: int, types: Mapping[str, str]) -> pa.Buffer | None:
    """Return the bytes a damaged part had, None where its texts, ids or labels are damaged too.

    Args:
        path: the part; its name says what the bytes have to be.
        first_row: number of its first row.
        types: the corpus's columns.
    """
    rows = _rows(_batch(path))
    if rows is None:
        return None
    try:
        data = part_bytes(first_row, ColumnReader().read(rows), types)
    except (InputError, KeyError, ValueError):
        return None
    return data if hashlib.sha256(data).hexdigest() == path.stem else None


def describe_by_parts(folder: Path) -> Described | None:
    """Describe the corpus in ``folder`` by its parts, None where they do not make a whole.

    Rows say everything that a description says, but how many rows of the source were skipped.
    """
    ordered = []
    for path in folder.glob("*.arrow"):
        batch = _batch(path)
        if batch is None or not batch.num_rows or sha256_file(path) != path.stem:
            return None
        ordered.append((batch.column("row")[0].as_py(), path))
    columns, parts, next_row = ColumnReader(), [], 0
    for first_row, path in sorted(ordered):
        rows = _rows(_batch(path))
        if rows is None or first_row != next_row:
            return None
        try:
            columns.read(rows)
        except InputError:
            return None
        parts.append(Part(path.stem, len(rows.texts)))
        next_row += len(rows.texts)
    if not parts:
        return None
    return _compared(CorpusInfo(folder.name, tuple(parts), columns.described(), {}), folder / DESCRIPTION)


def _compared(info: CorpusInfo, path: Path) -> Described:
    """Add what the damaged description says of skipped rows, where its seal or the rest of it agree."""
    try:
        data = read_regular(path)
    except (OSError, ValueError):
        return Described(info, is_proven=False)
    candidates = [info]
    counts = _SKIPPED.search(data)
    if counts is not None:
        with suppress(ValueError):
            candidates.append(replace(info, skipped=json.loads(counts[1])))
    for candidate in candidates:
        if proves(data, candidate.to_json()):
            return Described(candidate, is_proven=True)
    return Described(info, is_proven=False)


def _batch(path: Path) -> pa.RecordBatch | None:
    """Return the rows of a part that may be damaged, None where they cannot be read."""
    import pyarrow as pa

    try:
        batch = read_batch(pa.py_buffer(path.read_bytes()))
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError):
        return None
    names = batch.schema.names
    types = {name: str(batch.schema.field(name).type) for name in COLUMN_TYPES if name in names}
    known = all(type_ in COLUMN_TYPES[name] for name, type_ in types.items())
    gaps = any(column.null_count for column in batch.columns)
    return batch if known and not gaps and batch.schema.equals(part_schema(types)) else None


def _rows(batch: pa.RecordBatch | None) -> RowBatch | None:
    if batch is None:
        return None
    texts, ids, labels = (
        batch.column(name).to_pylist() if name in batch.schema.names else None for name in COLUMN_TYPES
    )
    return RowBatch(texts or [], ids, labels)
