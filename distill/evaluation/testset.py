"""Test files: tab-separated, a header line, UTF-8, no quoting, plain or gzip-compressed.

Both ``NAME.tsv`` and ``NAME.tsv.gz`` are looked for; where both lie in a folder the plain one is read.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.errors import DataError

_KINDS = ("the same", "in other capitals or blanks", "with the sides swapped")


@dataclass(frozen=True)
class TestFile:
    """The rows of a test file.

    Attributes:
        path: the file.
        rows: the cells of the wanted columns, in the order they were asked for; whole rows only.
        lines: how many lines follow the header.
        skipped: rows left out, by reason; those who read on count theirs here as well.
    """

    __test__ = False  # not a class of tests, whatever its name makes pytest think

    path: Path
    rows: Sequence[tuple[str, ...]]
    lines: int
    skipped: Counter[str]


def find_test_file(folder: str | Path, stem: str) -> Path | None:
    """Return ``folder/stem.tsv`` or ``folder/stem.tsv.gz``; None where neither is there.

    What is no file, as a broken link, is returned as well: a test set must not be passed over because of it.
    """
    places = (Path(folder) / f"{stem}.tsv", Path(folder) / f"{stem}.tsv.gz")
    return next((path for path in places if os.path.lexists(path)), None)


def stems_of(folder: str | Path, pattern: str) -> list[str]:
    """Return the names, without ``.tsv`` or ``.tsv.gz``, of the test files that match ``pattern``, sorted."""
    found = [*Path(folder).glob(f"{pattern}.tsv"), *Path(folder).glob(f"{pattern}.tsv.gz")]
    return sorted({path.name.removesuffix(".gz").removesuffix(".tsv") for path in found})


def find_first_test_file(folder: str | Path, stems: Sequence[str]) -> Path | None:
    """Return the file of the first of ``stems`` that is there; None where none is."""
    return next((path for stem in stems if (path := find_test_file(folder, stem)) is not None), None)


def read_test_file(path: str | Path, columns: Sequence[str]) -> TestFile:
    """Read the ``columns`` of a test file.

    Raises:
        DataError: if the file cannot be read, is damaged, is not UTF-8 or lacks a column.
    """
    path = Path(path)
    lines = _read_lines(path)
    header = lines[0].split("\t")
    lacking = [column for column in columns if column not in header]
    if lacking:
        raise DataError(
            f"{path} has the columns {', '.join(header)}; {', '.join(lacking)} not found, "
            f"expected {', '.join(columns)}, tab-separated, in a header line"
        )
    places = [header.index(column) for column in columns]
    skipped: Counter[str] = Counter()
    rows: list[tuple[str, ...]] = []
    for line in lines[1:]:
        cells = line.split("\t")
        if len(cells) == len(header):
            rows.append(tuple(cells[place] for place in places))
        else:
            skipped["wrong number of columns"] += 1
    return TestFile(path, rows, len(lines) - 1, skipped)


def describe_skipped(skipped: Counter[str]) -> str:
    """Return the reasons and how many rows each left out, for messages."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(skipped.items())) or "none"


def count_repeats(items: Iterable[Hashable]) -> int:
    """Return how many of ``items`` equal an earlier one."""
    return sum(count - 1 for count in Counter(items).values())


def plain_text(text: str) -> str:
    """Return ``text`` without what capitals and runs of blanks tell apart."""
    return " ".join(text.casefold().split())


def describe_repeated_pairs(left: Sequence[str], right: Sequence[str]) -> str:
    """Return how many pairs occur before, and how many in which way; empty where none does.

    A pair is counted once: as the same, else as the same but for capitals and blanks, else as one with its
    sides swapped (capitals and blanks aside).

    Args:
        left, right: (pairs) the two sides, in file order.
    """
    seen: set[tuple[str, str]] = set()
    seen_plain: set[tuple[str, str]] = set()
    kinds: Counter[str] = Counter()
    for pair in zip(left, right, strict=True):
        one, other = plain_text(pair[0]), plain_text(pair[1])
        if pair in seen:
            kinds["the same"] += 1
        elif (one, other) in seen_plain:
            kinds["in other capitals or blanks"] += 1
        elif (other, one) in seen_plain:
            kinds["with the sides swapped"] += 1
        seen.add(pair)
        seen_plain.add((one, other))
    if not kinds:
        return ""
    each = ", ".join(f"{kinds[kind]} {kind}" for kind in _KINDS if kinds[kind])
    return f"{kinds.total()} ({each})"


def _read_lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); fetch it again") from error
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(
            f"{path} line {line} is not UTF-8 ({error.reason}); convert the file to UTF-8"
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path") from error
    # Only "\n" ends a row: str.splitlines would also cut at the exotic separators that texts contain.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
