"""``SOURCES.json``: what was fetched into a folder, from where, and with which digests.

Where a source has no digest that is known beforehand, the first fetch is trusted and its digest kept here,
and every later one is held against it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from distill.errors import DataError
from distill.strict_config import StrictConfig
from embedcache.fsio import write_bytes

LEDGER = "SOURCES.json"


class FetchedFile(StrictConfig):
    """One file as it was offered.

    Attributes:
        url: where.
        sha256: digest of its bytes.
        size: number of its bytes.
        known_beforehand: whether the digest is one that the list of sources gives.
    """

    url: str
    sha256: str
    size: int
    known_beforehand: bool


class FetchedTable(StrictConfig):
    """One table as it was written.

    Attributes:
        suite: the suite it is of.
        source: who offers it.
        licence: what the source says.
        sha256: digest of the table, uncompressed.
        known_beforehand: whether that digest is one that the list of sources gives.
        rows: how many rows it has.
        dropped: rows of the source that were left out, by reason.
        fetched: when, in UTC.
        files: what it was made of.
    """

    suite: str
    source: str
    licence: str
    sha256: str
    known_beforehand: bool
    rows: int
    dropped: Mapping[str, int]
    fetched: str
    files: Sequence[FetchedFile]

    @property
    def is_checked(self) -> bool:
        """Whether it was held against digests that were known beforehand: its own or those of its files."""
        return self.known_beforehand or all(file.known_beforehand for file in self.files)


class Ledger:
    """The records of a folder.

    Raises:
        DataError: if its file is there but is not one of ours.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / LEDGER
        self.tables: dict[str, FetchedTable] = {}
        if not self.path.exists():
            return
        try:
            found: dict[str, Any] = json.loads(self.path.read_bytes())
            self.tables = {
                file: FetchedTable.model_validate(table) for file, table in found["tables"].items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise DataError(
                f"{self.path} cannot be read as a list of what was fetched ({str(error)[:200]}); "
                "mend it, or delete it to trust what comes as if for the first time"
            ) from error

    def put(self, file: str, table: FetchedTable) -> None:
        """Record a table, at once on disk.

        Raises:
            StorageError: if it cannot be written.
        """
        self.tables[file] = table
        listed = {file: self.tables[file].model_dump(mode="json") for file in sorted(self.tables)}
        text = json.dumps({"version": 1, "tables": listed}, indent=2, ensure_ascii=False)
        write_bytes(self.path, f"{text}\n".encode())

    def known(self, url: str) -> str | None:
        """Return the digest that ``url`` had when it was fetched last, None where it was not."""
        for table in self.tables.values():
            for file in table.files:
                if file.url == url:
                    return file.sha256
        return None
