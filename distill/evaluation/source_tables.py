"""Tables of test data: their sources, listed in ``sources/SUITE.yaml``, and their conversion to rows.

An address names a commit or a revision wherever the host has such a thing, so that its content cannot change.
A source that does not have the form its list describes is an error: a file read wrongly is worse than none.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

from pydantic import BaseModel, Field

from distill.errors import DataError

FOLDER = Path(__file__).with_name("sources")
EITHER = "utf-8 or latin-1"
MATCHED_QUERIES, MATCHED_ENTITIES = "matched queries", "matched entities"

Row = dict[str, str]


class Part(BaseModel, extra="forbid", frozen=True):
    """A split, subset or class of a table.

    Attributes:
        files: addresses relative to the table's ``base``, a member of a ZIP archive behind a ``!``. Several
            files belong together line by line: the cells of their n-th lines are one row.
        rows: number of rows; None where it is not known.
    """

    files: list[str] = Field(min_length=1)
    rows: int | None = None


class Table(BaseModel, extra="forbid", frozen=True):
    """A file of a suite and its source.

    Attributes:
        file: its name in the data folder.
        set: the set's name.
        source: name of its source.
        base: address that the files' addresses are relative to.
        licence: licence that the source states.
        columns: the table's columns.
        parts: its parts by name, in the order of the table's rows.
        form: form of the source's files: ``tsv``, ``csv``, ``json`` (an object a line), ``matched queries``
            or ``matched entities`` (labelled pairs of records), or a regular expression of a line.
        cells: names of a line's first cells; empty: the first line is a header.
        rename: column -> its name in the source, where that differs.
        part: columns that hold the part's name.
        number: column that holds the row's number in its part.
        skip: column -> value; such rows are left out and counted.
        encoding: of the source's files; ``utf-8 or latin-1`` where copies differ.
        sha256: digest of the whole table, uncompressed, where it is known.
        checksums: sha256 of the source's files, where they are known, by their address relative to ``base``.
    """

    file: str
    set: str
    source: str
    base: str
    licence: str
    columns: list[str]
    parts: dict[str, Part]
    form: str = "tsv"
    cells: list[str] = []
    rename: dict[str, str] = {}
    part: list[str] = []
    number: str = ""
    skip: dict[str, str] = {}
    encoding: str = "utf-8"
    sha256: str | None = None
    checksums: dict[str, str] = {}

    @property
    def stem(self) -> str:
        """The file's name without its ending."""
        return self.file.removesuffix(".gz").removesuffix(".tsv")

    @property
    def rows(self) -> int | None:
        """Number of rows; None where a part's is not known."""
        counts = [part.rows for part in self.parts.values()]
        return sum(filter(None, counts)) if None not in counts else None

    @property
    def is_pinned(self) -> bool:
        """True where the table's digest, or those of all its source's files, are known."""
        return self.sha256 is not None or None not in self.urls().values()

    def urls(self) -> dict[str, str | None]:
        """Return the addresses to download with their sha256, None where that is not known."""
        files = [file.partition("!")[0] for part in self.parts.values() for file in part.files]
        return {urljoin(self.base, file): self.checksums.get(file) for file in files}

    def read(self, downloads: dict[str, Path]) -> tuple[list[Row], int]:
        """Return the table's rows and the number of rows left out.

        Args:
            downloads: address -> file, of all of ``urls``.

        Raises:
            DataError: if a file is damaged, or does not have the form or the number of rows it should have.
        """
        rows: list[Row] = []
        skipped = 0
        for name, part in self.parts.items():
            try:
                found = [
                    self._row(name, number, row) for number, row in enumerate(self._parse(part, downloads))
                ]
            except (ValueError, KeyError, EOFError, OSError, csv.Error) as error:
                raise DataError(
                    f"{self.file}: {', '.join(part.files)}: {error}; the source has changed"
                ) from error
            kept = [
                row for row in found if not any(row[column] == value for column, value in self.skip.items())
            ]
            if part.rows not in (None, len(kept)):
                raise DataError(f"{self.file}: {name} has {len(kept):,} rows, expected {part.rows:,}")
            rows += kept
            skipped += len(found) - len(kept)
        return rows, skipped

    def _row(self, part: str, number: int, cells: Row) -> Row:
        given = dict.fromkeys(self.part, part) | ({self.number: str(number)} if self.number else {})
        row = {
            column: given.get(column) or " ".join(str(cells[self.rename.get(column, column)]).split())
            for column in self.columns
        }
        if row.get("score"):
            float(row["score"])
        return row

    def _parse(self, part: Part, downloads: dict[str, Path]) -> Iterator[Row]:
        files = [self._lines(file, downloads) for file in part.files]
        if self.form in (MATCHED_QUERIES, MATCHED_ENTITIES):
            yield from _matched_queries(files) if self.form == MATCHED_QUERIES else _matched_entities(files)
            return
        lines = map("\t".join, zip(*files, strict=True))
        if self.form == "json":
            yield from map(json.loads, lines)
        elif self.form in ("tsv", "csv"):
            rows: Iterator[list[str]] = (line.split("\t") for line in lines)
            if self.form == "csv":
                rows = csv.reader((f"{line}\n" for line in lines), strict=True)
            names = self.cells or next(rows)
            for cells in rows:
                # Cells behind those that the list names are of no use; a header names all.
                if len(cells) < len(names) or (len(cells) > len(names) and not self.cells):
                    raise ValueError(f"{len(cells)} cells, expected {len(names)}: {str(cells)[:80]}")
                yield dict(zip(names, cells, strict=False))
        else:
            for line in lines:
                if (found := re.fullmatch(self.form, line)) is None:
                    raise ValueError(f"expected {self.form}, found {line[:80]!r}")
                yield found.groupdict()

    def _lines(self, file: str, downloads: dict[str, Path]) -> Iterator[str]:
        import fsspec

        address, _, member = file.partition("!")
        place = str(downloads[urljoin(self.base, address)])
        with fsspec.open(f"zip://{member}::{place}" if member else place, compression="infer") as handle:
            # Only "\n" ends a line: texts hold other separators.
            for line in handle:
                yield _decoded(line, self.encoding).removesuffix("\n").removesuffix("\r")


def fetchable_suites() -> list[str]:
    """Return the names of the suites that have sources."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def tables_of(suite: str) -> list[Table]:
    """Return the tables of a suite; those it shares with other suites come first.

    Raises:
        DataError: if no source is known for it.
    """
    import yaml

    if suite not in (known := fetchable_suites()):
        raise DataError(f"no sources are known for suite {suite!r}; choose one of {', '.join(known)}")
    listed = yaml.safe_load((FOLDER / f"{suite}.yaml").read_text(encoding="utf-8"))
    shared = [
        table
        for other, files in listed.get("also", {}).items()
        for table in tables_of(other)
        if table.file in files
    ]
    return shared + [Table.model_validate(table) for table in listed.get("tables", [])]


def _decoded(line: bytes, encoding: str) -> str:
    if encoding != EITHER:
        return line.decode(encoding)
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")


def _matches(files: list[Iterator[str]]) -> tuple[dict[str, dict[int, set[str]]], dict[str, int]]:
    """Read labelled pairs of records, as entity matching offers them, as queries and a catalogue.

    The files for training, validation and test hold lines of a record, a record of the other source and 1 if
    both are the same thing. A record reads ``COL name VAL value COL name VAL value ...``.

    Returns:
        Text of a query -> number of its entity -> splits of that match; text of an entity -> its number.
        Both in the order of appearance.
    """
    queries: dict[str, dict[int, set[str]]] = {}
    entities: dict[str, int] = {}
    for split, lines in zip(("train", "valid", "test"), files, strict=True):
        for line in lines:
            left, right, label = line.split("\t")
            matches = queries.setdefault(_record(left), {})
            entity = entities.setdefault(_record(right), len(entities))
            if int(label):
                matches.setdefault(entity, set()).add(split)
    return queries, entities


def _matched_queries(files: list[Iterator[str]]) -> Iterator[Row]:
    for number, (text, matches) in enumerate(_matches(files)[0].items()):
        splits = ",".join(sorted(set().union(*matches.values())))
        gold = ",".join(f"C{entity}" for entity in sorted(matches))
        yield {"split": splits, "query_id": f"D{number}", "text": text, "gold_entity_ids": gold}


def _matched_entities(files: list[Iterator[str]]) -> Iterator[Row]:
    for number, text in enumerate(_matches(files)[1]):
        yield {"entity_id": f"C{number}", "text": text}


def _record(text: str) -> str:
    # The blank before the next name stays, for that name's own match: a value may be empty.
    before, *values = re.split(r"(?:^|\s)COL \S+ VAL(?=\s|$)", text)
    if before.strip() or not values:
        raise ValueError(f"expected COL name VAL value ..., found {text[:80]!r}")
    return " ".join(" | ".join(" ".join(value.split()) for value in values).split())
