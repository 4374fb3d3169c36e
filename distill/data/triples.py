"""Texts to fine-tune on: anchors with a positive and a hard negative each, pairs, or texts alone."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from distill.data.collate import Batch, pad_texts
from distill.data.labelled import TextRows, one_source
from distill.data.sampler import BUCKET_BATCHES, EpochBatches, epoch_batches
from distill.data.source import Share
from distill.data.tokens import TokenArrays
from distill.errors import DataError
from embedcache.corpus.columns import Columns
from embedcache.corpus.formats import raw_rows
from embedcache.corpus.readers import ReadReport, text_problem
from embedcache.corpus.sources import format_of
from embedcache.errors import MissingInputError
from embedcache.pairs import SEPARATOR
from embedcache.teacher.tokenize import FastTokenizer

_KNOWN_COLUMNS = (
    ("anchor", "positive", "negative"),
    ("premise", "entailment", "contradiction"),
    ("anchor", "positive"),
    ("premise", "entailment"),
)
_OPTION = "--column"
_TEXTS_AT_ONCE = 8192


@dataclass(frozen=True)
class Triples(TextRows):
    """Rows of one, two or three texts, in the order of their file.

    Attributes:
        name: their name in reports.
        columns: the texts by column: anchors, then positives, then hard negatives, as far as there are.
        skipped: why rows of the file were left out -> how many.
        described: the same in words, with the place of the first of each.
    """

    name: str
    columns: tuple[list[str], ...]
    skipped: Counter[str] = field(default_factory=Counter)
    described: str = ""

    @property
    def digest(self) -> str:
        """The sha256 of all texts in order."""
        digest = hashlib.sha256()
        for column in self.columns:
            for text in column:
                encoded = text.encode()
                digest.update(len(encoded).to_bytes(8, "little") + encoded)
        return digest.hexdigest()

    def take(self, rows: NDArray[np.integer]) -> Triples:
        """Return some of the rows."""
        return replace(self, columns=tuple([column[row] for row in rows] for column in self.columns))

    def codes(self) -> NDArray[np.int64]:
        """Return a number for every text, the same for the same text, shape (rows, columns)."""
        numbers: dict[str, int] = {}
        return np.array(
            [[numbers.setdefault(text, len(numbers)) for text in column] for column in self.columns],
            dtype=np.int64,
        ).T.copy()


def read_triples(
    path: str | Path,
    *,
    columns: Sequence[str] | None = None,
    format: str | None = None,  # noqa: A002 - as the readers call it
    limit: int | None = None,
) -> Triples:
    """Read anchors, positives and hard negatives; a file with two of the columns holds pairs.

    Rows with an empty or unusable text, a hard negative that is its own positive, and rows that stand
    earlier already are skipped and counted.

    Args:
        path: a TSV, CSV, JSONL, Parquet or Arrow file, compressed or not.
        columns: the columns' names; default: ``anchor``, ``positive``, ``negative``, or ``premise``,
            ``entailment``, ``contradiction``, or the first two of either.
        format: the file's format; default: by its ending.
        limit: stop after N kept rows.

    Raises:
        InputError: if the file or a column is missing or cannot be read.
        DataError: if the columns are ambiguous, or fewer than two rows are left.
    """
    source = one_source(path)
    kind = format_of(source, format)
    return _read(source, kind, columns or _find_columns(source, kind), limit)


def read_sentences(
    path: str | Path,
    *,
    column: str | None = None,
    format: str | None = None,  # noqa: A002 - as the readers call it
    limit: int | None = None,
) -> Triples:
    """Read texts that are their own positives. Empty and repeated ones are skipped and counted.

    Raises:
        InputError, DataError: as ``read_triples``.
    """
    source = one_source(path)
    return _read(source, format_of(source, format), (column,), limit)


def _find_columns(source: Path, kind: str) -> Sequence[str]:
    lacking = ""
    for names in _KNOWN_COLUMNS:
        try:
            with raw_rows(source, kind, _columns(names)) as rows:
                next(rows, None)
            return names
        except MissingInputError as error:  # noqa: PERF203 - four at most
            lacking = lacking or str(error)
    raise DataError(
        f"cannot tell which columns are anchor, positive and hard negative ({lacking}): name them, as in "
        f"{_OPTION} A {_OPTION} B {_OPTION} C"
    )


def _columns(names: Sequence[str | None]) -> Columns:
    more = tuple((_OPTION, name) for name in names[1:] if name is not None)
    return Columns(names[0], text_option=_OPTION, more=more)


def _read(source: Path, kind: str, names: Sequence[str | None], limit: int | None) -> Triples:
    report = ReadReport()
    # Each row once, in order.
    kept: dict[tuple[str, ...], None] = {}
    with raw_rows(source, kind, _columns(names)) as rows:
        for position, text, _, _, *others in rows:
            row = (text, *others)
            problem = next((found.value for found in map(text_problem, row) if found is not None), None)
            if problem is None and len(row) == 3 and row[1] == row[2]:
                problem = "hard negative that is the positive"
            if problem is None and row in kept:
                problem = "repeated row"
            if problem is not None:
                report.skip(problem, f"{source}:{position}")
                continue
            kept[row] = None
            if len(kept) == limit:
                break
    if len(kept) < 2:
        found = f": skipped {report.describe_skipped()}" if report.skipped else ""
        raise DataError(
            f"{source} holds {len(kept)} usable rows{found}; expected two at least, as every row is compared "
            "with others"
        )
    name = Path(source).name.split(".")[0] or str(source)
    columns = tuple(list(column) for column in zip(*kept, strict=True))
    return Triples(name, columns, report.skipped, report.describe_skipped())


@dataclass(frozen=True)
class TripleSource:
    """Rows of texts to train on, tokenised.

    Attributes:
        arrays: the token ids of each column.
        texts: V, the texts of a row that are encoded: as many as columns, or two of the only one.
        bucket_batches: batches a bucket of rows of like length; 1: batches are random rows.
    """

    arrays: tuple[TokenArrays, ...]
    texts: int
    bucket_batches: int = BUCKET_BATCHES

    @property
    def lengths(self) -> NDArray[np.int32]:
        """The tokens of each row's longest text."""
        rows = np.arange(len(self.arrays[0].offsets) - 1)
        longest: NDArray[np.int32] = np.max([tokens.lengths(rows) for tokens in self.arrays], axis=0)
        return longest

    def batches(self, batch_size: int, *, seed: int, epoch: int) -> EpochBatches:
        """Return the batches of an epoch; see ``distill.data.source.Source``."""
        buckets = self.bucket_batches
        return epoch_batches(self.lengths, batch_size, seed=seed, epoch=epoch, bucket_batches=buckets)

    def fetch(self, batches: Sequence[NDArray[np.integer]], epoch: int) -> None:
        """Do nothing: the rows are in memory."""

    def prepare(self, batches: Sequence[NDArray[np.integer]], epoch: int, share: Share) -> list[Batch]:
        """Return this process's part of each of several steps; see ``distill.data.source.Source``."""
        return [self._batch(rows, share) for rows in batches]

    def _batch(self, rows: NDArray[np.integer], share: Share) -> Batch:
        own, counted = share.of(len(rows))
        which = np.minimum(np.arange(self.texts), len(self.arrays) - 1)[:, None]
        ids, mask, types = pad_texts(self.arrays, np.tile(which, len(rows[own])), rows[own])
        numbers = torch.from_numpy(rows.astype(np.int64))
        nothing = torch.empty(len(rows), 0)
        return Batch(ids, mask, self.texts, numbers, nothing, own.start, counted, token_types=types)


def tokenise(
    columns: Sequence[Sequence[str]],
    tokenizer: FastTokenizer,
    on_progress: Callable[[int], None] | None = None,
) -> tuple[TokenArrays, ...]:
    """Return the token arrays of texts, column by column, in memory.

    Args:
        columns: the texts.
        tokenizer: the student's tokenizer.
        on_progress: called with the number of texts done.
    """
    done = 0
    found = []
    for texts in columns:
        ids, lengths = [np.empty(0, dtype=np.int32)], [np.zeros(1, dtype=np.int64)]
        first = [np.empty(0, dtype=np.int32)]
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            tokenized = tokenizer(texts[start : start + _TEXTS_AT_ONCE])
            ids.append(tokenized.ids)
            lengths.append(tokenized.lengths)
            first.append(tokenized.first_tokens)
            done += len(tokenized.lengths)
            if on_progress is not None:
                on_progress(done)
        arrays = TokenArrays(np.concatenate(ids), np.cumsum(np.concatenate(lengths)), tokenizer.pad_id)
        types = tokenizer.uses_token_types and any(SEPARATOR in text for text in texts)
        found.append(replace(arrays, first=np.concatenate(first)) if types else arrays)
    return tuple(found)
