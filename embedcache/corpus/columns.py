"""Columns of a corpus as they are stored, made of batches of rows, with a digest of each."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from embedcache.corpus.corpus import Column
from embedcache.corpus.part import ORIGINAL, TEXT_TYPE, key_column
from embedcache.corpus.readers import RowBatch
from embedcache.errors import InputError
from embedcache.keys import key_array

if TYPE_CHECKING:
    import pyarrow as pa

_STORED_AS = {str: TEXT_TYPE, int: "int64", float: "double"}


class ColumnReader:
    """Turn the batches of one corpus into columns, all of the types that the first batch has.

    Attributes:
        types: column -> Arrow type, once a batch was read.
    """

    def __init__(self) -> None:
        self.types: dict[str, str] = {}
        self._digests: dict[str, hashlib._Hash] = {}

    def read(self, batch: RowBatch) -> dict[str, pa.Array]:
        """Return ``key`` and the columns of ``batch``, which is not empty.

        Raises:
            InputError: if a column is missing, new, of another length, or of values that cannot be stored.
        """
        import pyarrow as pa

        every: dict[str, Any] = {ORIGINAL: batch.texts, "id": batch.ids, "label": batch.labels}
        given = {name: values for name, values in every.items() if values is not None}
        kinds = {name: set(map(type, values)) for name, values in given.items()}
        types = {name: _STORED_AS.get(type(values[0]), "") for name, values in given.items() if values}
        if not self.types:
            self.types = types
            self._digests = {name: hashlib.sha256() for name in given}
        if types != self.types or any(len(v) != len(batch.texts) for v in given.values()):
            found = ", ".join(f"{len(values)} {name}s" for name, values in given.items())
            raise InputError(f"a batch of {found} ({types}): expected as many of each, of {self.types}")
        if mixed := [name for name, found in kinds.items() if len(found) > 1 or not types[name]]:
            found = ", ".join(sorted(kind.__name__ for kind in kinds[mixed[0]]))
            raise InputError(f"{mixed[0]}s of type {found}: expected str, int or float")
        try:
            keys = key_array(batch.texts)
            columns = {name: pa.array(values, self.types[name]) for name, values in given.items()}
        except (UnicodeEncodeError, OverflowError, pa.ArrowException) as error:
            raise InputError(
                f"a value cannot be stored ({error}); expected text that is UTF-8, numbers of 64 bits"
            ) from error
        # Of the values, not of batches: how the reader cut them must not show.
        self._digests[ORIGINAL].update(keys.tobytes())
        for name in given.keys() - {ORIGINAL}:
            self._digests[name].update("".join(f"{value!r}\n" for value in given[name]).encode())
        return {"key": key_column(keys), **columns}

    def described(self) -> dict[str, Column]:
        """Return the columns as the corpus's description names them."""
        return {name: Column(type_, self._digests[name].hexdigest()) for name, type_ in self.types.items()}
