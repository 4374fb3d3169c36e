"""The sentences of the fidelity suite: those of a file, or those that the evaluated runs held out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from distill.errors import DataError
from distill.evaluation.tasks import NotThereError, Request
from distill.layout import HELD_OUT
from distill.record import run_folder

_FEWEST_IN_COMMON = 10


@dataclass(frozen=True)
class Sentences:
    """Distinct sentences in order, where they came from, what was left out on the way, and what to tell."""

    texts: list[str]
    source: str
    duplicates: int
    skipped: str = ""
    note: str = ""


def read_sentences(request: Request) -> Sentences:
    """Return the sentences of ``request.data`` or, without it, those that its runs held out.

    Raises:
        NotThereError: if there are none, or the runs held out too few of the same.
        DataError: if they cannot be read.
    """
    if request.data is not None:
        return _read_file(request.data, request.text_column, request.limit)
    if request.text_column is not None:
        raise DataError("--text-column names a column of --data: give --data, or leave it out")
    runs = dict.fromkeys(run for run in map(run_folder, request.models) if run is not None)
    if not runs:
        raise NotThereError(
            "no sentences to compare on: give --data FILE, or evaluate a run that held some out"
        )
    held_out = {run: _read_held_out(run / HELD_OUT) for run in runs}
    first_run, texts = next(iter(held_out.items()))
    source = str(first_run / HELD_OUT)
    if all(other == texts for other in held_out.values()):
        return _distinct(texts[: request.limit], source)
    # None of the models may have been trained on a sentence that it is compared on.
    common = set.intersection(*(set(other) for other in held_out.values()))
    if len(common) < _FEWEST_IN_COMMON:
        raise NotThereError(
            f"{', '.join(map(str, held_out))} held out different sentences, {len(common)} in common, "
            f"expected at least {_FEWEST_IN_COMMON}: give --data FILE"
        )
    counts = ", ".join(f"{run.name} {len(other)}" for run, other in held_out.items())
    found = _distinct([text for text in texts if text in common][: request.limit], source)
    return replace(found, note=f"compared on the {len(common)} sentences that all runs held out ({counts})")


def _read_file(path: Path, text_column: str | None, limit: int | None) -> Sentences:
    from embedcache.corpus.readers import ReadOptions, ReadReport, read_batches
    from embedcache.corpus.sources import expand_sources

    if path.is_dir():
        raise DataError(
            f"{path} is a folder; the fidelity suite reads sentences from a file: give --data FILE"
        )
    report = ReadReport()
    options = ReadOptions(text_column=text_column, limit=limit)
    texts = [t for batch in read_batches(expand_sources([path]), options, report) for t in batch.texts]
    return _distinct(texts, str(path), report.describe_skipped())


def _read_held_out(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        texts = [json.loads(line) for line in lines if line]
    except FileNotFoundError as error:
        raise NotThereError(f"no {path}: the run held no sentences out; give --data FILE") from error
    except (ValueError, OSError) as error:
        raise DataError(
            f"{path} cannot be read, expected one JSON string a line ({error}); give --data"
        ) from error
    if not all(isinstance(text, str) for text in texts):
        raise DataError(f"{path} holds something else than JSON strings; give --data FILE")
    return texts


def _distinct(texts: Sequence[str], source: str, skipped: str = "") -> Sentences:
    distinct = list(dict.fromkeys(texts))
    return Sentences(distinct, source, len(texts) - len(distinct), skipped)
