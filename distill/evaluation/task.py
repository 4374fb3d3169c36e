"""Registry of evaluation suites, and the interface that a suite implements.

A suite is a callable ``(encode, data, options) -> SuiteResult``. It reads its files from ``data``, asks
``encode`` for the vectors of each of its sets, and returns figures::

    @register_suite("parity", summary="sentences of even length", files=[SuiteFile("parity", ("text",))])
    def parity(encode, data, options):
        sentences, labels = read(data / "parity.tsv")
        vectors = encode(sentences)                     # (n, d) float32, finite, no row zero
        return SuiteResult({"parity": Figure(100 * accuracy(vectors, labels), "accuracy", items=len(labels))})

One outside the package is named ``module:function`` or ``file.py:function``.
"""

from __future__ import annotations

import difflib
import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from distill.errors import DataError
from distill.evaluation.models import Encode, Model, Vectors
from distill.evaluation.result import SuiteResult
from distill.layout import describe_missing
from distill.plugins import load_object
from embedcache.progress import NO_PROGRESS, Progress

Items: TypeAlias = Mapping[str, Sequence[tuple[str, ...]]]
"""Set -> its test items, each with the texts it is made of: two of a pair, one of an example."""

ALL = "all"
"""Stands for every suite that finds its files."""

DEFAULT, PAIRS = "sts", "pairs"
"""Default suite, and the suite of the user's own pairs."""

SNLI_PAIRS = 15_000
"""Pairs that SNLI's classifier learns from by default; encoding all of them takes longer than all else."""

# Modules whose import registers their suites, in the order of lists.
_MODULES = ("sts", "own_pairs", "probes", "ranking", "geometry", "latency", "fidelity")


class NotThereError(DataError):
    """Nothing to read for a suite; no file is damaged."""


@dataclass(frozen=True)
class SuiteFile:
    """Test file of a suite: tab-separated, a header line, UTF-8, no quoting; ``.tsv`` or ``.tsv.gz``.

    Attributes:
        stem: its name without ending; words in capitals stand for any name.
        columns: columns it needs.
    """

    stem: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class SuiteOptions:
    """Settings of suites; each suite reads those it names when it is registered.

    Attributes:
        seed: choice of folds and samples.
        limit: read at most N sentences (``fidelity``).
        text_column: column of ``data`` that holds the sentences (``fidelity``).
        snli_pairs: pairs that SNLI's classifier learns from; 0 for all (``nli``).
        model: the model whose vectors are scored.
        teacher: encodes with the teacher; None without one.
        progress: progress of long work.
    """

    seed: int = 0
    limit: int | None = None
    text_column: str | None = None
    snli_pairs: int = SNLI_PAIRS
    model: Model | None = None
    teacher: Encode | None = None
    progress: Progress = NO_PROGRESS


@dataclass(frozen=True)
class Suite:
    """A registered suite.

    Attributes:
        name: its name.
        run: scores a model.
        summary: its measurements, in a few words.
        files: files it looks for in ``data``; empty: every file there.
        items: reads the test items of each set, for finding them in training texts; None if it has no sets.
        options: names of the ``SuiteOptions`` that may change a figure.
        needs_teacher: compares with the teacher's vectors, on a file of sentences and not a folder.
        on_request: runs only if it is named, because it takes minutes for each model.
        version: returns the identity of what is neither in ``data`` nor an option: a data set of the hub, the
            machine; None if that is unknown, so that results are not kept.
    """

    name: str
    run: Callable[[Encode, Path, SuiteOptions], SuiteResult]
    summary: str = ""
    files: Sequence[SuiteFile] = ()
    items: Callable[[Path, SuiteOptions], Items] | None = None
    options: Sequence[str] = ()
    needs_teacher: bool = False
    on_request: bool = False
    version: Callable[[], str | None] = lambda: ""

    def files_in(self, data: Path) -> list[Path]:
        """Return the files of ``data`` whose content may change a figure."""
        if data.is_file() or data == Path():
            return [data] if data.is_file() else []
        patterns = {re.sub(r"[A-Z]+\d*", "*", file.stem) + ".tsv*" for file in self.files} or {"*"}
        return sorted({path for pattern in patterns for path in data.glob(pattern) if path.is_file()})


_suites: dict[str, Suite] = {}


def register_suite(
    name: str, **settings: Any
) -> Callable[[Callable[..., SuiteResult]], Callable[..., SuiteResult]]:
    """Register a callable as the suite ``name``; ``settings`` are further attributes of ``Suite``."""

    def register(run: Callable[..., SuiteResult]) -> Callable[..., SuiteResult]:
        _suites[name] = Suite(name, run, **settings)
        return run

    return register


def suites() -> dict[str, Suite]:
    """Return all registered suites by name."""
    order = [importlib.import_module(f"distill.evaluation.{module}").__name__ for module in _MODULES]
    # In the order of lists, whichever module was imported first.
    return dict(
        sorted(_suites.items(), key=lambda one: [*order, one[1].run.__module__].index(one[1].run.__module__))
    )


def get_suite(name: str) -> Suite:
    """Return a suite by its name, or by ``module:function`` or ``file.py:function``.

    Raises:
        DataError: if there is no such suite, or it cannot be imported.
    """
    if name.startswith("mteb:"):
        from distill.evaluation.mteb import load_task

        task, run, summary, version = load_task(name.removeprefix("mteb:"))
        return Suite(task, run, summary, version=lambda: version)
    found = suites()
    if name in found:
        return found[name]
    place, colon, function = name.rpartition(":")
    if not colon:
        near = difflib.get_close_matches(name, found, n=1)
        hint = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(found)} or MODULE:FUNCTION"
        raise DataError(f"no suite {name!r}: {hint}")
    try:
        run = load_object(place, function, DataError)
    except DataError as error:
        raise DataError(f"suite {name!r} cannot be imported: {error}") from error
    registered = next((suite for suite in _suites.values() if suite.run is run), None)
    summary = next(iter((run.__doc__ or "").strip().splitlines()), function)
    return registered or Suite(function, run, summary)


def require_data(suite: Suite, data: Path | None) -> None:
    """Raise ``DataError`` unless ``data`` is what a suite without a teacher's sentences reads."""
    if suite.needs_teacher:
        return
    if data is None and suite.files:
        raise DataError(
            f"the {suite.name} suite needs a folder of test files: give --data DIR, or --pairs FILE with "
            "pairs of your own, or --suite=fidelity, which takes held-out texts"
        )
    if data is not None and not data.is_dir():
        missing = describe_missing(str(data.absolute()))
        raise DataError(
            f"{missing or f'{data} is a file'}; --data is the folder of the test files; --pairs FILE "
            "takes pairs of your own"
        )


def find_suites(names: Sequence[str]) -> list[Suite]:
    """Return suites by name, each once; of ``ALL``, every one that does not run on request only."""
    if ALL in names:
        if len(names) > 1:
            raise DataError(f"{', '.join(names)}: {ALL} means every suite: give it alone")
        return [suite for suite in suites().values() if not suite.on_request]
    return [get_suite(name) for name in dict.fromkeys(names)]


class Encoded:
    """Vectors of sentences, each encoded once.

    A vector depends in its last bits on the batch it is computed in, and an answer may depend on those. So
    the sentences of a set of answers are encoded without those of other sets.

    Args:
        encode: the encoder.
        texts: the sentences; they may repeat.
    """

    def __init__(self, encode: Encode, texts: Iterable[str]) -> None:
        self.texts = list(dict.fromkeys(texts))
        self.vectors = encode(self.texts)
        self._row = {text: row for row, text in enumerate(self.texts)}

    def __len__(self) -> int:
        """Return the number of distinct sentences."""
        return len(self.texts)

    def __call__(self, texts: Iterable[str]) -> Vectors:
        """Return the vectors of some of the sentences, (n, d) float32."""
        picked: Vectors = self.vectors[[self._row[text] for text in texts]]
        return picked
