"""Labelled texts and pairs from test files, and what a reader must know of them.

Rows without a label, with an empty text, of no known part or with the wrong number of columns are left out
and counted. Examples that occur twice stay, as they do in the field's figures, but are counted: one that is
learnt from and scored makes a figure too good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from distill.errors import DataError
from distill.evaluation.testset import describe_skipped, plain_text, read_test_file

UNLABELLED = frozenset({"", "-", "-1", "n/a", "nan", "none"})
"""What stands for "no label" in the field's files, case-blind."""

# Rare labels named in a note; more are counted.
_MOST_NAMED = 5


@dataclass(frozen=True)
class Layout:
    """How labelled examples lie in a file.

    Attributes:
        texts: columns of the text, or of the two texts of a pair.
        label: column of the label.
        split: column that says which part a row belongs to; None where a file is one part.
        parts: part -> the values of ``split`` that mean it; rows of other values are left out and counted.
    """

    texts: tuple[str, ...] = ("text",)
    label: str = "label"
    split: str | None = None
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Examples:
    """Labelled texts or pairs, in file order.

    Attributes:
        texts: the text of each, or its two texts.
        labels: the label of each.
    """

    texts: tuple[tuple[str, ...], ...]
    labels: tuple[str, ...]

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.labels)


def read_examples(path: Path, layout: Layout, whole: str) -> tuple[dict[str, Examples], Counter[str]]:
    """Read a file's parts, and count the rows left out by reason.

    Args:
        path: the file.
        layout: how they lie in it.
        whole: the name of the one part, where the layout has no split.

    Raises:
        DataError: if the file is damaged, lacks a column or a part, or a part holds no labelled example.
    """
    columns = [*layout.texts, layout.label, *([layout.split] if layout.split else [])]
    file = read_test_file(path, columns)
    skipped = file.skipped
    part_of = {value: part for part, values in layout.parts.items() for value in values}
    kept: dict[str, list[tuple[tuple[str, ...], str]]] = {part: [] for part in layout.parts or (whole,)}
    width = len(layout.texts)
    for row in file.rows:
        texts, label = row[:width], row[width].strip()
        part = part_of.get(row[-1]) if layout.split else whole
        if part is None:
            skipped[f"of no known {layout.split}"] += 1
        elif label.casefold() in UNLABELLED:
            skipped["no label"] += 1
        elif not all(text.strip() for text in texts):
            skipped["empty text"] += 1
        else:
            kept[part].append((texts, label))
    for part, examples in kept.items():
        if not examples:
            wanted = f" of {layout.split} {' or '.join(layout.parts[part])}" if layout.split else ""
            raise DataError(
                f"{path} holds no labelled example{wanted} in {file.lines} rows "
                f"(skipped: {describe_skipped(skipped)})"
            )
    return {part: _examples(rows) for part, rows in kept.items()}, skipped


def describe_labels(learnt: Examples, scored: Examples) -> list[str]:
    """Return a line for each fault of the labels: in one example only, or scored but not to be learnt."""
    known = Counter(learnt.labels)
    lines = []
    single = sorted(label for label, count in known.items() if count == 1)
    if single:
        lines.append(f"{_named(single)} occurs once among the examples to learn from")
    unknown = Counter(label for label in scored.labels if label not in known)
    if unknown:
        lines.append(
            f"{unknown.total()} scored examples of {_named(sorted(unknown))}, which is not among those to "
            "learn from: they count as wrong"
        )
    return lines


def describe_repetitions(examples: Examples) -> list[str]:
    """Return a line on examples of one part whose texts occur before, capitals and blanks aside."""
    first: dict[tuple[str, ...], str] = {}
    repeated = contrary = 0
    for texts, label in zip(examples.texts, examples.labels, strict=True):
        plain = _plain(texts)
        if plain in first:
            repeated += 1
            contrary += first[plain] != label
        else:
            first[plain] = label
    if not repeated:
        return []
    other = f", {contrary} of them with another label" if contrary else ""
    return [f"{repeated} of {len(examples)} examples occur before{other}"]


def describe_leak(learnt: Examples, scored: Examples) -> list[str]:
    """Return a line on scored examples that are also among those to learn from, capitals and blanks aside."""
    known = {_plain(texts) for texts in learnt.texts}
    leaked = sum(_plain(texts) in known for texts in scored.texts)
    return [f"{leaked} of {len(scored)} scored examples are also among those to learn from"] if leaked else []


def _examples(rows: Sequence[tuple[tuple[str, ...], str]]) -> Examples:
    texts, labels = zip(*rows, strict=True)
    return Examples(texts, labels)


def _plain(texts: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(plain_text, texts))


def _named(labels: Sequence[str]) -> str:
    named = ", ".join(repr(label) for label in labels[:_MOST_NAMED])
    more = len(labels) - _MOST_NAMED
    return f"label {named}" + (f" and {more} more" if more > 0 else "")
