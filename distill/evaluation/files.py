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
from dataclasses import dataclass, field
from pathlib import Path

from distill.errors import DataError
from distill.layout import describe_missing

PAIR_COLUMNS = ("subset", "score", "sentence1", "sentence2")

# Stand for "no label", in any case.
_UNLABELLED = frozenset({"", "-", "-1", "n/a", "nan", "none"})


@dataclass(frozen=True)
class Rows:
    """Rows of a test file.

    Attributes:
        path: the file.
        rows: cells of the wanted columns, of rows with the right number of columns.
        skipped: reason -> rows left out; later readers add theirs.
    """

    path: Path
    rows: Sequence[tuple[str, ...]]
    skipped: Counter[str]


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs of sentences with gold scores, in file order.

    Attributes:
        name: key of the set in results.
        label: name of the set in tables.
        pairs: the two sentences of each.
        scores: the score of each.
        subsets: the subset of each; empty where there are none.
        skipped: reason -> rows left out.
    """

    name: str
    label: str
    pairs: Sequence[tuple[str, str]]
    scores: Sequence[float]
    subsets: Sequence[str] = ()
    skipped: Mapping[str, int] = field(default_factory=dict)

    @property
    def left(self) -> list[str]:
        """First sentences."""
        return [left for left, _ in self.pairs]

    @property
    def right(self) -> list[str]:
        """Second sentences."""
        return [right for _, right in self.pairs]


@dataclass(frozen=True)
class Examples:
    """Labelled texts, or pairs of texts, in file order."""

    texts: Sequence[tuple[str, ...]]
    labels: Sequence[str]

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)


def require_folder(data: Path | None, suite: str) -> Path:
    """Return ``data`` if it is a folder.

    Raises:
        DataError: if it was not given, or is no folder.
    """
    if data is None:
        raise DataError(f"the {suite} suite needs a folder of test files: give --data DIR")
    if data.is_file():
        raise DataError(f"{data} is a file: give --data the folder that it lies in")
    if not data.is_dir():
        raise DataError(f"{describe_missing(str(data.absolute()))}; --data is the folder of the test files")
    return data


def find_file(folder: str | Path, *stems: str) -> Path | None:
    """Return the first file ``folder/STEM.tsv`` or ``folder/STEM.tsv.gz``; None if there is none."""
    places = (Path(folder) / f"{stem}.tsv{ending}" for stem in stems for ending in ("", ".gz"))
    # A broken link counts: a set must not be passed over because of it.
    return next((path for path in places if os.path.lexists(path)), None)


def find_stems(folder: str | Path, pattern: str) -> list[str]:
    """Return the sorted names, without ending, of the test files that match ``pattern``."""
    found = [*Path(folder).glob(f"{pattern}.tsv"), *Path(folder).glob(f"{pattern}.tsv.gz")]
    return sorted({path.name.removesuffix(".gz").removesuffix(".tsv") for path in found})


def read_rows(path: Path, columns: Sequence[str]) -> Rows:
    """Read ``columns`` of a test file.

    Raises:
        DataError: if the file cannot be read, is damaged, is not UTF-8 or lacks a column.
    """
    lines = _read_lines(path)
    header = lines[0].split("\t")
    if lacking := [column for column in columns if column not in header]:
        raise DataError(
            f"{path}: no column {', '.join(lacking)} (columns: {', '.join(header)}). "
            "Expected a header line, tab-separated"
        )
    places = [header.index(column) for column in columns]
    cells = [line.split("\t") for line in lines[1:]]
    whole = [row for row in cells if len(row) == len(header)]
    ragged = len(cells) - len(whole)
    skipped = Counter({"wrong number of columns": ragged} if ragged else {})
    return Rows(path, [tuple(row[place] for place in places) for row in whole], skipped)


def read_pairs(path: str | Path, name: str, label: str = "", subset: str | None = None) -> ScoredPairs:
    """Read a file of scored pairs, all of them or those of one subset.

    Raises:
        DataError: as :func:`read_rows`, and if no scored pair is left.
    """
    file = read_rows(Path(path), PAIR_COLUMNS)
    rows = [row for row in file.rows if subset in (None, row[0])]
    return scored_pairs(name, label or name, rows, file.skipped, str(path))


def scored_pairs(
    name: str, label: str, rows: Iterable[Sequence[str]], skipped: Counter[str], places: str
) -> ScoredPairs:
    """Make a set of rows (subset, score, sentence1, sentence2).

    Args:
        name: key of the set.
        label: its name in tables.
        rows: the rows.
        skipped: rows left out so far; counted on.
        places: the files, for messages.

    Raises:
        DataError: if no scored pair is left.
    """
    kept = []
    for subset, cell, left, right in rows:
        score, fault = parse_score(cell)
        if not fault and not (left.strip() and right.strip()):
            fault = "empty sentence"
        if fault:
            skipped[fault] += 1
        else:
            kept.append((subset, score, (left, right)))
    if not kept:
        raise DataError(f"{places}: no scored pair for {label} (skipped: {describe_skipped(skipped)})")
    subsets, scores, pairs = zip(*kept, strict=True)
    return ScoredPairs(name, label, pairs, scores, subsets, dict(skipped))


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
        DataError: as :func:`read_rows`, and if a part holds no labelled example.
    """
    file = read_rows(path, [*texts, label, *([split] if split else [])])
    parts = parts or {"all": ()}
    part_of = {value: part for part, values in parts.items() for value in values}
    kept: dict[str, list[tuple[tuple[str, ...], str]]] = {part: [] for part in parts}
    for row in file.rows:
        found, named = row[: len(texts)], row[len(texts)].strip()
        part = part_of.get(row[-1]) if split else next(iter(parts))
        if part is None:
            file.skipped[f"of no known {split}"] += 1
        elif named.casefold() in _UNLABELLED:
            file.skipped["no label"] += 1
        elif not all(text.strip() for text in found):
            file.skipped["empty text"] += 1
        else:
            kept[part].append((found, named))
    for part, rows in kept.items():
        if not rows:
            wanted = f" of {split} {' or '.join(parts[part])}" if split else ""
            raise DataError(
                f"{path}: no labelled example{wanted} (skipped: {describe_skipped(file.skipped)})"
            )
    examples = {part: Examples(*zip(*rows, strict=True)) for part, rows in kept.items()}
    return examples, file.skipped


def parse_score(cell: str) -> tuple[float, str]:
    """Return the score in a cell, and why it cannot be used; "" if it can."""
    try:
        value = float(cell) if cell.strip() else math.nan
    except ValueError:
        return math.nan, "score is not a number"
    if math.isnan(value):
        return math.nan, "no score"
    return value, "" if math.isfinite(value) else "score is not finite"


def describe_skipped(skipped: Mapping[str, int]) -> str:
    """Return the reasons with the number of rows each left out, for messages."""
    return ", ".join(f"{reason} {count}" for reason, count in sorted(skipped.items())) or "none"


def skipped_note(label: str, skipped: Mapping[str, int]) -> list[str]:
    """Return a note on the rows of a set that were left out; none if there are none."""
    count = sum(skipped.values())
    return [f"{label}: {count} rows skipped ({describe_skipped(skipped)})"] if count else []


def count_repeats(items: Iterable[Sequence[str]]) -> int:
    """Return how many items equal an earlier one but for case, blanks and the order of their texts."""
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
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise DataError(f"{path} is not a whole gzip file ({error}); fetch it again") from error
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DataError(f"{path} line {line} is not UTF-8 ({error.reason}); convert the file") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}); check the path") from error
    # Only "\n" ends a row: str.splitlines would also cut at the exotic separators that texts contain.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
