"""Registry of evaluation suites, and the interface a suite is written against.

A suite is a callable ``(encode, data, options) -> SuiteResult``. It reads its files from ``data``, asks
``encode`` once for the vectors of its distinct sentences, and returns figures::

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from distill.errors import DataError
from distill.evaluation.models import Encode, Model, Progress, cpu_threads, processor, silent
from distill.evaluation.result import SuiteResult
from distill.plugins import load_object

Items: TypeAlias = Mapping[str, Sequence[tuple[str, ...]]]
"""Set -> its test items, each with the texts it is made of: two of a pair, one of an example."""

SNLI_PAIRS = 15_000
"""Pairs that SNLI's classifier learns from by default; encoding all of them takes longer than all else."""

# Modules whose import registers their suites, in the order of lists.
_MODULES = ("sts", "probes", "ranking", "geometry", "latency", "fidelity")


class NotThereError(DataError):
    """Nothing to read for a suite; no file is damaged."""


@dataclass(frozen=True)
class SuiteFile:
    """Test file of a suite: tab-separated, a header line, UTF-8, no quoting; ``.tsv`` or ``.tsv.gz``.

    Attributes:
        stem: its name without ending; words in capitals stand for any name.
        columns: columns it needs.
        sets: sets it is for, as tables call them.
        note: further remark for the list of suites.
    """

    stem: str
    columns: tuple[str, ...]
    sets: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class SuiteOptions:
    """Settings of suites; each suite reads those it names when it is registered.

    Attributes:
        seed: choice of folds and samples.
        limit: read at most N sentences (``fidelity``).
        text_column: column of ``data`` that holds the sentences (``fidelity``).
        sst2_sentences: learn SST2 from whole sentences, a tenth as many as its phrases (``transfer``).
        snli_pairs: pairs that SNLI's classifier learns from; 0 for all (``nli``).
        model: the model whose vectors are scored.
        teacher: encodes with the teacher; None without one.
        progress: called while something long is done.
    """

    seed: int = 0
    limit: int | None = None
    text_column: str | None = None
    sst2_sentences: bool = False
    snli_pairs: int = SNLI_PAIRS
    model: Model | None = None
    teacher: Encode | None = None
    progress: Progress = silent

    @property
    def machine(self) -> str:
        """Processor and threads, which decide a speed."""
        return f"{processor()}, {cpu_threads()} threads"


@dataclass(frozen=True)
class Suite:
    """A registered suite.

    Attributes:
        name: its name.
        summary: what it measures, in a few words.
        run: scores a model.
        files: files it looks for in ``data``; empty: every file there.
        items: reads the test items of each set, for finding them in training texts; None if it has no sets.
        options: names of the :class:`SuiteOptions` that may change a figure.
        reads_sentences: ``data`` is a file of plain sentences, not a folder of test files.
        needs_teacher: nothing can be scored without the teacher's vectors.
        on_request: runs only if it is named, because it takes minutes for each model.
        version: identity of data that are not in ``data``; None if unknown, so that results are not kept.
    """

    name: str
    summary: str
    run: Callable[[Encode, Path, SuiteOptions], SuiteResult]
    files: tuple[SuiteFile, ...] = ()
    items: Callable[[Path, SuiteOptions], Items] | None = None
    options: tuple[str, ...] = ()
    reads_sentences: bool = False
    needs_teacher: bool = False
    on_request: bool = False
    version: str | None = ""

    def settings(self, options: SuiteOptions) -> dict[str, Any]:
        """Return the options that may change a figure of this suite, by name."""
        return {name: getattr(options, name) for name in self.options}


_suites: dict[str, Suite] = {}


def register_suite(
    name: str,
    *,
    summary: str,
    files: Sequence[SuiteFile] = (),
    items: Callable[[Path, SuiteOptions], Items] | None = None,
    options: Sequence[str] = (),
    reads_sentences: bool = False,
    needs_teacher: bool = False,
    on_request: bool = False,
) -> Callable[[Callable[..., SuiteResult]], Callable[..., SuiteResult]]:
    """Register a callable as the suite ``name``; arguments are those of :class:`Suite`."""

    def register(run: Callable[..., SuiteResult]) -> Callable[..., SuiteResult]:
        _suites[name] = Suite(
            name,
            summary,
            run,
            tuple(files),
            items,
            tuple(options),
            reads_sentences,
            needs_teacher,
            on_request,
        )
        return run

    return register


def suites() -> dict[str, Suite]:
    """Return all registered suites by name."""
    modules = [importlib.import_module(f"distill.evaluation.{module}") for module in _MODULES]
    order = {module.__name__: number for number, module in enumerate(modules)}
    # In the order of lists, whichever module was imported first.
    return dict(sorted(_suites.items(), key=lambda one: order.get(one[1].run.__module__, len(order))))


def get_suite(name: str) -> Suite:
    """Return a suite by its name, or by ``module:function`` or ``file.py:function``.

    Raises:
        DataError: if there is no such suite, or it cannot be imported.
    """
    if name.startswith("mteb:"):
        from distill.evaluation.mteb import evaluate_task, load_task

        task = load_task(name.removeprefix("mteb:"))
        run = lambda encode, data, options: evaluate_task(task, encode)  # noqa: E731
        revision = None if ":" in name.removeprefix("mteb:") else task.metadata.revision
        return Suite(f"mteb:{task.metadata.name}", task.metadata.description, run, version=revision)
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
    return registered or Suite(function, summary, run)
