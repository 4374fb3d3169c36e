"""Reading the rows of a corpus: each row is kept, or skipped and counted.

``docs/input.md`` lists the outcome of every bad input.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, TypeAlias, cast

from typing_extensions import TypedDict

from embedcache.corpus.columns import Columns, Problem, RawRow, is_utf8
from embedcache.corpus.formats import raw_rows
from embedcache.corpus.sources import STDIN, MemoryRows, Source, format_of, source_name
from embedcache.corpus.template import TextTemplate
from embedcache.corpus.url_files import UrlFile
from embedcache.errors import EmptySourceError, InputError
from embedcache.pairs import SEPARATOR, join_pair

Label: TypeAlias = str | int | float


@dataclass(frozen=True)
class ReadOptions:
    """Columns and rows to read from each source.

    Attributes:
        text_column: column of the text; default: the one called ``text``, ``sentence`` or ``content``.
        id_column: column whose values, as strings, name the rows; they must differ.
        label_column: column of strings, whole numbers or fractions.
        format: ``text``, ``jsonl``, ``csv``, ``tsv``, ``parquet`` or ``arrow``; default: by the ending, and
            plain text for standard input.
        limit: stop after this many kept rows of all sources together.
        text2_column: column of a second text: rows are pairs, see ``embedcache.pairs``.
        rows: ``COLUMN=VALUE`` each; rows for which not all of them hold are left out.
        delimiter: of CSV and TSV: a character, ``tab``, ``comma``, ``semicolon`` or ``pipe``.
        text_template: text made of several columns, such as ``{title}. {body}``, in place of ``text_column``.
        on_bad: ``error`` where more than 1 % of a file's rows are malformed, or any row in memory has no text
            that can be kept; or ``skip``.
    """

    text_column: str | None = None
    id_column: str | None = None
    label_column: str | None = None
    format: str | None = None
    limit: int | None = None
    text2_column: str | None = None
    rows: tuple[str, ...] = ()
    delimiter: str | None = None
    on_bad: str = "error"
    text_template: str | None = None

    def __post_init__(self) -> None:
        if self.on_bad not in ("error", "skip"):
            raise InputError(f"on_bad {self.on_bad!r}: expected error or skip")
        if isinstance(cast("object", self.rows), str):
            object.__setattr__(self, "rows", (self.rows,))

    def columns(self, *more: tuple[str, str]) -> Columns:
        """Return the columns to read: a second text, then ``more``, and last those of the conditions.

        Raises:
            InputError: if a condition is not of the form ``COLUMN=VALUE``, or a text of a template as well.
        """
        second = [("text2_column", self.text2_column)] if self.text2_column is not None else []
        text, option = self.text_column, "text_column"
        if self.text_template is not None:
            if second or text is not None:
                raise InputError("--text-template makes the text: leave --text-column and --text2-column out")
            option = "text_template"
            text, *others = TextTemplate(self.text_template).fields
            second = [(option, column) for column in others]
        every = (*second, *more, *RowConditions(self.rows).columns)
        own = (text, self.id_column, self.label_column)
        return Columns(*own, text_option=option, more=every, delimiter=self.delimiter, on_bad=self.on_bad)

    @property
    def text_of(self) -> Callable[[RawRow], str | Problem]:
        """Function of ``text_of_row`` for these options."""
        return partial(
            text_of_row,
            pairs=self.text2_column is not None,
            template=None if self.text_template is None else TextTemplate(self.text_template),
            with_id=self.id_column is not None,
            with_label=self.label_column is not None,
        )


class ReadArguments(TypedDict, total=False):
    """The same as arguments of a function."""

    text_column: str | None
    id_column: str | None
    label_column: str | None
    format: str | None
    limit: int | None
    text2_column: str | None
    rows: tuple[str, ...]
    delimiter: str | None
    on_bad: str
    text_template: str | None


@dataclass
class ReadReport:
    """Counts of the rows read, filled while they are read.

    Attributes:
        rows: rows kept.
        skipped: reason -> rows skipped.
        first_skipped: reason -> ``file:line`` of the first such row (``file:row`` where there are no lines).
        not_asked: rows that the conditions left out.
        kept: of rows in memory, the places of those kept, from 0.
        column: column of the texts; None for plain text.
        example: the first text kept.
    """

    rows: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    first_skipped: dict[str, str] = field(default_factory=dict)
    not_asked: int = 0
    kept: array[int] = field(default_factory=lambda: array("q"))
    column: str | None = None
    example: str = ""

    def skip(self, reason: str, where: str) -> None:
        """Count one row as skipped at ``where``."""
        self.skipped[reason] += 1
        self.first_skipped.setdefault(reason, where)

    def describe_skipped(self) -> str:
        """Return the counts as a phrase, the commonest reason first; empty where nothing was skipped."""
        return ", ".join(
            f"{count} {reason} (first at {self.first_skipped[reason]})"
            for reason, count in self.skipped.most_common()
        )


@dataclass(frozen=True)
class RowBatch:
    """Rows in source order: ``texts``, and of the same length the ``ids`` and ``labels`` asked for."""

    texts: list[str]
    ids: list[str] | None
    labels: list[str] | list[int] | list[float] | None


class RowConditions:
    """Conditions that all have to hold for a row.

    Args:
        rows: ``COLUMN=VALUE`` each.
        option: the option that gives them, for messages.

    Attributes:
        columns: the option and the column of each condition, to be read after all other columns.
        not_asked: number of rows for which they did not hold.

    Raises:
        InputError: if one has another form.
    """

    def __init__(self, rows: Sequence[str], option: str = "rows") -> None:
        pairs = [row.partition("=") for row in rows]
        for row, (column, _, value) in zip(rows, pairs, strict=True):
            if not column or not value:
                raise InputError(f"{option} {row!r}: expected COLUMN=VALUE, such as split=train")
        self._rows, self._option = tuple(rows), option
        self._wanted = [value for _, _, value in pairs]
        self.columns = [(option, column) for column, _, _ in pairs]
        self.not_asked = 0

    def hold(self, row: RawRow) -> bool:
        """Return whether a raw row is asked for; one without a text, which is skipped, passes."""
        found = row[len(row) - len(self._wanted) :]
        if not self._wanted or isinstance(row[1], Problem) or [*map(str, found)] == self._wanted:
            return True
        self.not_asked += 1
        return False

    def describe_none(self) -> str:
        """Return the reason why no row was asked for."""
        return f"none of {self.not_asked:,} rows has {' and '.join(self._rows)}; change {self._option}"


def check_sources(sources: Sequence[Source], options: ReadOptions) -> None:
    """Open every source and find its columns, before anything slow begins.

    Standard input, and rows that can be read only once, are left for ``read_batches``.

    Raises:
        MissingInputError, InputError: as ``read_batches``, as far as the first row shows it.
    """
    for source, kind in _with_formats(sources, options):
        if not is_read_once(source):
            with may_be_empty(sources), raw_rows(source, kind, options.columns()) as rows:
                next(rows, None)


def is_read_once(source: Source) -> bool:
    """Return whether a source cannot be read a second time."""
    if isinstance(source, MemoryRows):
        return source.once
    if isinstance(source, UrlFile):
        return False
    # Pipes, among them /dev/stdin and what a shell gives for <(command).
    return source == STDIN or (source.exists() and not source.is_file())


def read_batches(
    sources: Sequence[Source], options: ReadOptions, report: ReadReport, *, batch_rows: int = 8192
) -> Iterator[RowBatch]:
    """Yield the kept rows of ``sources``, in order, in batches of ``batch_rows`` (the last may be shorter).

    ``report`` is up to date with every batch given. With a limit, nothing after the last kept row is counted.

    Raises:
        MissingInputError: a file or a column is missing.
        InputError: as ``docs/input.md`` lists; also an unknown format or a limit below 1.
    """
    with closing(_kept_rows(sources, options, report)) as rows:
        while batch := list(islice(rows, batch_rows)):
            report.rows += len(batch)
            report.example = report.example or batch[0][0]
            yield RowBatch(
                texts=[text for text, _, _ in batch],
                ids=None if options.id_column is None else [id_ for _, id_, _ in batch],
                labels=None if options.label_column is None else [label for _, _, label in batch],
            )


def _with_formats(sources: Sequence[Source], options: ReadOptions) -> list[tuple[Source, str]]:
    if options.limit is not None and options.limit < 1:
        raise InputError(f"limit is {options.limit}, expected at least 1; leave it out to read every row")
    return [(source, format_of(source, options.format)) for source in sources]


def _kept_rows(
    sources: Sequence[Source], options: ReadOptions, report: ReadReport
) -> Generator[tuple[str, str, Any], None, None]:
    labels, text_of, kept = _LabelType(), options.text_of, 0
    with_id, with_label = options.id_column is not None, options.label_column is not None
    for source, kind in _with_formats(sources, options):
        name, conditions = source_name(source), RowConditions(options.rows)
        before, skipped = kept, report.skipped.total()
        source_is_memory = isinstance(source, MemoryRows)
        with may_be_empty(sources), raw_rows(source, kind, options.columns()) as rows:
            report.column = options.text_template or rows.column
            for row in rows:
                if options.rows and not conditions.hold(row):
                    report.not_asked += 1
                    continue
                text = text_of(row)
                if isinstance(text, Problem):
                    report.skip(text.value, f"{name}:{row[0]}")
                    continue
                kept += 1
                if source_is_memory:
                    report.kept.append(row[0] - 1)
                label = labels.fitted(row[3], f"{name}:{row[0]}") if with_label else None
                yield text, str(row[2]) if with_id else "", label
                if kept == options.limit:
                    return
        if source_is_memory and options.on_bad == "error" and (bad := report.skipped.total()) and kept:
            raise InputError(
                f"{bad:,} of {bad + kept:,} rows have no usable text: {report.describe_skipped()}. "
                "Drop them, or pass on_bad='skip': the result's kept_rows then says which rows were kept"
            )
        if kept > before:
            continue
        if len(sources) > 1 and report.skipped.total() == skipped and not conditions.not_asked:
            report.skip(Problem.EMPTY_FILE.value, name)
        else:
            why = (
                f"every row was skipped: {report.describe_skipped()}" if report.skipped else "a header alone"
            )
            if conditions.not_asked:
                why = conditions.describe_none()
            raise InputError(f"{name}: no rows to read as {kind}: {why}")
    if not kept:
        raise InputError(f"no rows to read: {len(sources):,} files are empty")


def may_be_empty(sources: Sequence[Source]) -> AbstractContextManager[None]:
    """Leave the block at a source without a row, if there are others."""
    return suppress(EmptySourceError) if len(sources) > 1 else nullcontext()


def text_of_row(
    row: RawRow,
    *,
    pairs: bool = False,
    with_id: bool = False,
    with_label: bool = False,
    template: TextTemplate | None = None,
) -> str | Problem:
    """Return the text of a raw row as corpora keep it, or the problem for which the row is skipped.

    Args:
        row: the row.
        pairs: True if a second text was asked for; both become one text.
        template: makes the text of the columns that it names.
        with_id, with_label: True if an id and a label were asked for, and must be usable.
    """
    text, id_, label = row[1:4]
    if template is not None:
        text = template.fill((text, *row[4 : 3 + len(template.fields)]))
    problem = (
        text_problem(text)
        or (_value_problem(id_, Problem.NULL_ID) if with_id else None)
        or (_label_problem(label) if with_label else None)
        or (text_problem(row[4]) if pairs else None)
    )
    if problem is not None:
        return problem
    kept: str = join_pair(text, row[4]) if pairs else text
    return kept


def text_problem(text: object) -> Problem | None:
    """Return the problem of a value as a text; None where it is kept."""
    if not isinstance(text, str):
        is_null = text is None or text != text  # NaN
        return text if isinstance(text, Problem) else Problem.NULL if is_null else Problem.NOT_A_STRING
    if not text or text.isspace():
        return Problem.EMPTY
    if "\0" in text:
        return Problem.NUL_BYTE
    if SEPARATOR in text:
        return Problem.PAIR_SEPARATOR
    return None if is_utf8(text) else Problem.INVALID_UTF8


def _value_problem(value: object, missing: Problem) -> Problem | None:
    if isinstance(value, str) and value:
        return None if is_utf8(value) else Problem.INVALID_UTF8
    if isinstance(value, Problem):
        return value
    return missing if value is None or value == "" or value != value else None


def _label_problem(label: object) -> Problem | None:
    if problem := _value_problem(label, Problem.NULL_LABEL):
        return problem
    if isinstance(label, int):
        return None if -(2**63) <= label < 2**63 else Problem.BAD_LABEL
    usable = isinstance(label, str) or (isinstance(label, float) and math.isfinite(label))
    return None if usable else Problem.BAD_LABEL


class _LabelType:
    """The one type of a corpus's labels, set by the first of them."""

    def __init__(self) -> None:
        self._type: type[Label] | None = None

    def fitted(self, label: Label, where: str) -> Label:
        """Return ``label`` in that type, or raise: a column of two types could not be stored."""
        if type(label) is self._type:
            return label
        if isinstance(label, int):
            # A bool is a number, and whole numbers stand among fractions.
            label = float(label) if self._type is float else int(label)
        self._type = self._type or type(label)
        if type(label) is not self._type:
            raise InputError(
                f"{where}: label {label!r} is of type {type(label).__name__}, those before it of type "
                f"{self._type.__name__}; write the column in one type (1.0, not 1, where there are fractions)"
            )
        return label
