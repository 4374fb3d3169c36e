"""Conversion of labelled pairs of records, as entity matching has them, to queries and a catalogue.

Three files, training, validation and test, hold lines of a record, a record of the other source and whether
they are the same thing. A record reads ``COL name VAL value COL name VAL value ...``. Records of the first
source are the queries, those of the second the catalogue; each is numbered in the order of appearance.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from distill.errors import DataError
from distill.evaluation.fetch.readers import Lines, Row, clean

SPLITS = ("train", "valid", "test")
UNMATCHED = "records without a match"

# The blank before the next name stays, for that name's own match: a value may be empty.
_NAME = re.compile(r"(?:^|\s)COL \S+ VAL(?=\s|$)")


@dataclass
class _Matches:
    """Numbers of the records of either source, and for each query the splits and entities of its matches."""

    queries: dict[str, int] = field(default_factory=dict)
    entities: dict[str, int] = field(default_factory=dict)
    splits: dict[int, set[str]] = field(default_factory=dict)
    gold: dict[int, set[int]] = field(default_factory=dict)


def matched_queries(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """The records of the first source that have a match, with the splits that their matches are in."""
    found = _read(files)
    for text, number in found.queries.items():
        if number in found.gold:
            yield {
                "split": ",".join(sorted(found.splits[number])),
                "query_id": f"D{number}",
                "text": text,
                "gold_entity_ids": ",".join(f"C{entity}" for entity in sorted(found.gold[number])),
            }
        else:
            dropped[UNMATCHED] += 1


def matched_entities(part: str, files: Sequence[Lines], dropped: Counter[str]) -> Iterator[Row]:
    """The records of the second source."""
    for text, number in _read(files).entities.items():
        yield {"entity_id": f"C{number}", "text": text}


def _read(files: Sequence[Lines]) -> _Matches:
    found = _Matches()
    for split, lines in zip(SPLITS, files, strict=True):
        for number, line in enumerate(lines, 1):
            cells = line.split("\t")
            if len(cells) != 3 or cells[2] not in ("0", "1"):
                raise DataError(f"line {number} is not two records and 0 or 1: {line[:80]!r}")
            query = found.queries.setdefault(_text(cells[0], number), len(found.queries))
            entity = found.entities.setdefault(_text(cells[1], number), len(found.entities))
            if cells[2] == "1":
                found.splits.setdefault(query, set()).add(split)
                found.gold.setdefault(query, set()).add(entity)
    return found


def _text(record: str, number: int) -> str:
    before, *values = _NAME.split(record)
    if before.strip() or not values:
        raise DataError(f"line {number} has a record that is not COL name VAL value: {record[:80]!r}")
    return clean(" | ".join(map(clean, values)))
