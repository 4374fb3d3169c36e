"""From batches of rows to the columns a corpus stores, with a digest of each column on the way."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from embedcache.corpus.corpus import Column
from embedcache.corpus.part import ORIGINAL, TEXT_TYPE, key_column
from embedcache.corpus.readers import RowBatch
from embedcache.errors import InputError
from embedcache.keys import key_array

if TYPE_CHECKING:
    import pyarrow as pa

_STORED_AS: Mapping[type, str] = {str: TEXT_TYPE, int: "int64", float: "double"}


class ColumnReader:
    """Turns the batches of one corpus into columns, all of the types that the first row has.

    Attributes:
        types: column -> Arrow type, once a row was read.
    """

    def __init__(self) -> None:
        self.types: dict[str, str] = {}
        self._kinds: dict[str, type] = {}
        self._digests: dict[str, hashlib._Hash] = {}

    def read(self, batch: RowBatch) -> dict[str, pa.Array]:
        """Return ``key`` and the columns of ``batch``, which is not empty.

        Raises:
            InputError: if a column is missing, new, of another length, or of values that cannot be stored.
        """
        import pyarrow as pa

        every = {ORIGINAL: batch.texts, "id": batch.ids, "label": batch.labels}
        given: dict[str, Sequence[str | int | float]] = {
            name: values for name, values in every.items() if values is not None
        }
        if not self.types:
            self._begin(given)
        if given.keys() != self.types.keys() or any(len(v) != len(batch.texts) for v in given.values()):
            found = ", ".join(f"{len(values)} {name}s" for name, values in given.items())
            raise InputError(
                f"a batch has {found}; expected as many of each, of {', '.join(self.types)} as in the first"
            )
        for name, values in given.items():
            self._check_kinds(name, values)
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

    def _begin(self, given: Mapping[str, Sequence[str | int | float]]) -> None:
        self._kinds = dict.fromkeys(given, str)
        if given.get("label"):
            self._kinds["label"] = type(given["label"][0])
        if self._kinds.get("label", str) not in _STORED_AS:
            raise InputError(
                f"label {given['label'][0]!r} is of type {self._kinds['label'].__name__}; "
                "expected str, int or float"
            )
        self.types = {name: _STORED_AS[kind] for name, kind in self._kinds.items()}
        self._digests = {name: hashlib.sha256() for name in given}

    def _check_kinds(self, name: str, values: Sequence[str | int | float]) -> None:
        kind = self._kinds[name]
        for value in values:
            if type(value) is not kind:
                raise InputError(
                    f"{name} {value!r} is of type {type(value).__name__}, expected {kind.__name__}"
                )
