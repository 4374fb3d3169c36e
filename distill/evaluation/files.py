"""Test files of suites: tab-separated, a header line, UTF-8, no quoting, plain or gzip-compressed.

Of ``NAME.tsv`` and ``NAME.tsv.gz`` in one folder the plain one is read. Rows that cannot be used are left out
and counted by reason. Items that occur twice stay, as they do in published figures, and are counted.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from distill.errors import DataError

Row: TypeAlias = tuple[str, ...]

# Stand for "no label", in any case.
_UNLABELLED = frozenset({"", "-", "-1", "n/a", "nan", "none"})


@dataclass(frozen=True)
class Examples:
    """Labelled texts, or pairs of texts, in file order."""

    texts: Sequence[Row]
    labels: Sequence[str]

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)


def find_file(folder: str | Path, *stems: str) -> Path | None:
    """Return the first file ``folder/STEM.tsv`` or ``folder/STEM.tsv.gz``; None if there is none."""
    places = (Path(folder) / f"{stem}.tsv{ending}" for stem in stems for ending in ("", ".gz"))
    # A broken link counts: a set must not be passed over because of it.
    return next((path for path in places if os.path.lexists(path)), None)


def find_files(folder: str | Path, pattern: str) -> dict[str, Path]:
    """Return the test files that match ``pattern``, by their names without ending, sorted."""
    stems = {path.name.partition(".tsv")[0] for path in Path(folder).glob(f"{pattern}.tsv*")}
    return {stem: path for stem in sorted(stems) if (path := find_file(folder, stem))}


def read_rows(path: Path, columns: Sequence[str]) -> tuple[list[Row], Counter[str]]:
    """Return the cells of ``columns`` of each row of a test file, and the rows left out by reason.

    Raises:
        DataError: if the file cannot be read, is damaged, is not UTF-8 or lacks a column.
    """
    header, *cells = [line.split("\t") for line in _read_lines(path)]
    if lacking := [column for column in columns if column not in header]:
        raise DataError(
            f"{path}: no column {', '.join(lacking)} (columns: {', '.join(header)}). "
            "Expected a header line, tab-separated"
        )
    places = [header.index(column) for column in columns]
    rows = [tuple(row[place] for place in places) for row in cells if len(row) == len(header)]
    ragged = len(cells) - len(rows)
    return rows, Counter({"wrong number of columns": ragged} if ragged else {})


def read_examples(
    path: Path,
    texts: Sequence[str],
    label: str = "label",
    split: str | None = None,
    parts: Mapping[str, Sequence[str]] | None = None,
) -> tuple[dict[str, Examples], Counter[str]]:
    """Read the labelled examples of a file by part, and count the rows left out.

    Args:
        path: the file.
        texts: columns of the text, or of the two texts of a pair.
        label: column of the label.
        split: column that names the part of a row; None: the file is one part, ``all``.
        parts: part -> the values of ``split`` that mean it; rows of other values are left out and counted.

    Raises:
        DataError: as ``read_rows``, and if a part holds no labelled example.
    """
    rows, skipped = read_rows(path, [*texts, label, *([split] if split else [])])
    part_of = {value: part for part, values in (parts or {}).items() for value in values}
    kept: dict[str, list[tuple[Row, str]]] = {part: [] for part in parts or ("all",)}
    for row in rows:
        found, named = row[: len(texts)], row[len(texts)].strip()
        part = part_of.get(row[-1]) if split else "all"
        if part is None:
            skipped[f"of no known {split}"] += 1
        elif named.casefold() in _UNLABELLED:
            skipped["no label"] += 1
        elif not all(text.strip() for text in found):
            skipped["empty text"] += 1
        else:
            kept[part].append((found, named))
    for part, examples in kept.items():
        if not examples:
            raise DataError(
                f"{path}: no labelled example of {part} (skipped: {describe_skipped(skipped)}); "
                "check the file"
            )
    return {part: Examples(*zip(*examples, strict=True)) for part, examples in kept.items()}, skipped


def read_texts(path: Path, column: str, skipped: Counter[str]) -> dict[str, str]:
    """Read the ids in ``column`` and the texts of a file; errors and counts as ``texts_by_id``."""
    rows, skipped_too = read_rows(path, (column, "text"))
    skipped += skipped_too
    return texts_by_id(rows, column.removesuffix("_id"), path, skipped)


def texts_by_id(rows: Iterable[Row], what: str, path: Path, skipped: Counter[str]) -> dict[str, str]:
    """Return id -> text; empty texts and repeated ids are counted in ``skipped``.

    Raises:
        DataError: if no row is left.
    """
    texts: dict[str, str] = {}
    for name, text in rows:
        if not text.strip():
            skipped[f"empty {what}"] += 1
        elif name in texts:
            skipped[f"repeated id of a {what}"] += 1
        else:
            texts[name] = text
    if not texts:
        raise DataError(f"{path} holds no {what} (skipped: {describe_skipped(skipped)}); check the file")
    return texts


def parse_score(cell: str) -> float:
    """Return the score in a cell; NaN if it is not a number."""
    try:
        return float(cell)
    except ValueError:
        return math.nan


def describe_skipped(skipped: Mapping[str, int]) -> str:
    """Return the reasons with the number of rows each left out, for messages."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(skipped.items())) or "none"


def skipped_note(label: str, skipped: Mapping[str, int]) -> list[str]:
    """Return a note on the rows of a set that were left out; none if there are none."""
    count = sum(skipped.values())
    return [f"{label}: {count} rows skipped ({describe_skipped(skipped)})"] if count else []


def count_repeats(items: Iterable[Sequence[str]]) -> int:
    """Return the number of items that equal an earlier one but for case, blanks and order of texts."""
    counts = Counter(tuple(sorted(map(plain_text, item))) for item in items)
    return counts.total() - len(counts)


def plain_text(text: str) -> str:
    """Return ``text`` in lower case, with single blanks."""
    return " ".join(text.casefold().split())


def items_digest(items: Iterable[Sequence[str]]) -> str:
    """Return a digest of test items and their order."""
    whole = hashlib.sha256()
    for item in items:
        whole.update("".join(f"{len(text)} {text}\n" for text in item).encode(errors="surrogatepass"))
    return whole.hexdigest()


def _read_lines(path: Path) -> list[str]:
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(f"{path} line {line} is not UTF-8 ({error.reason}); convert the file") from error
    except FileNotFoundError as error:
        raise DataError(f"there is no file {path}: check the path") from error
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}); fetch it again") from error
    # Only "\n" ends a row: str.splitlines would also cut at the exotic separators that texts contain.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
