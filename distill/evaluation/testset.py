"""Test files: tab-separated, a header line, UTF-8, no quoting, plain or gzip-compressed.

Both ``NAME.tsv`` and ``NAME.tsv.gz`` are looked for; where both lie in a folder the plain one is read.
"""

from __future__ import annotations

import gzip
import zlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from distill.errors import DataError


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
    """Return ``folder/stem.tsv`` or ``folder/stem.tsv.gz``; None where neither is there."""
    places = (Path(folder) / f"{stem}.tsv", Path(folder) / f"{stem}.tsv.gz")
    return next((path for path in places if path.is_file()), None)


def stems_of(folder: str | Path, pattern: str) -> list[str]:
    """Return the names, without ``.tsv`` or ``.tsv.gz``, of the test files that match ``pattern``, sorted."""
    found = [*Path(folder).glob(f"{pattern}.tsv"), *Path(folder).glob(f"{pattern}.tsv.gz")]
    return sorted({path.name.removesuffix(".gz").removesuffix(".tsv") for path in found if path.is_file()})


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
