"""Latency: how fast a model is on a CPU, one sentence at a time, and what memory it takes.

The protocol of SimTDE: all sentences of STS-B test, 2 x 1379, in the file's order, one a call, on the CPU;
mean of three passes, after a warm-up that is not counted. Beside it three passes in batches of 32, and the
memory that loading and running the model added to its process.

Each model is timed in a process of its own that does nothing else, by what its user would call:
``SentenceTransformer.encode`` of its folder in float32, or ``onnxruntime`` on an export. Both include
tokenising. A model that is in memory only is timed where it is, by its own encoder. The number of threads is
that of the cores this process may use, or ``OMP_NUM_THREADS``. ``--device`` and ``--compute-dtype`` do not
matter here.

Read is ``stsb_test.tsv``, laid out as for the ``sts`` suite. This takes minutes for each model, so the suite
runs only when it is named. Nothing else should be running on the machine meanwhile.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import distill
from distill.errors import DataError
from distill.evaluation.encoding import Progress
from distill.evaluation.evaluated_model import EvaluatedModel
from distill.evaluation.old_sts import read_pairs
from distill.evaluation.spread import Score
from distill.evaluation.stopwatch import Timing, measure
from distill.evaluation.tasks import NotThereError, Request, Subject
from distill.evaluation.testset import describe_skipped, find_test_file
from distill.evaluation.threads import cpu_threads

PASSES = 3
"""Passes over all sentences; the figure is their mean."""

BATCH_SIZE = 32
"""Sentences of a batch, where they come in batches."""

SPEED = "batch_1_sentences_per_second"
"""What the JSON of the scores calls the sentences a second, one at a time."""

BATCH_SPEED = f"batch_{BATCH_SIZE}_sentences_per_second"
"""What it calls those in batches."""

_FILE = "stsb_test"


@dataclass(frozen=True)
class LatencyScores:
    """How fast one model was.

    Attributes:
        timing: what was measured.
        sentences: sentences of a pass.
        runtime: what ran the model.
    """

    timing: Timing
    sentences: int
    runtime: str

    @property
    def headline(self) -> None:
        """None: a share of the teacher's speed is not a share of its quality."""

    @property
    def seconds(self) -> float:
        """Mean seconds of a pass, one sentence at a time."""
        return sum(self.timing.single) / len(self.timing.single)

    @property
    def batch_seconds(self) -> float:
        """Mean seconds of a pass in batches."""
        return sum(self.timing.batch) / len(self.timing.batch)

    def to_json(self) -> dict[str, object]:
        """Return seconds, percentiles in milliseconds, sentences per second and the peak of memory in MB.

        ``passes_std`` holds the standard deviation of the passes' seconds, one at a time and in batches.
        """
        timing = self.timing
        peak = timing.peak_megabytes
        passes = (Score.of(timing.single), Score.of(timing.batch))
        return {
            "runtime": self.runtime,
            "batch_1_seconds": round(self.seconds, 3),
            "batch_1_passes": [round(seconds, 3) for seconds in timing.single],
            SPEED: round(self.sentences / self.seconds, 1),
            "batch_1_ms_p50": round(timing.text_p50_ms, 3),
            "batch_1_ms_p95": round(timing.text_p95_ms, 3),
            f"batch_{BATCH_SIZE}_passes": [round(seconds, 3) for seconds in timing.batch],
            BATCH_SPEED: round(self.sentences / self.batch_seconds, 1),
            "passes_std": [None if one is None or one.std is None else round(one.std, 4) for one in passes],
            "peak_memory_megabytes": None if peak is None else round(peak, 1),
        }

    def rows(self) -> list[tuple[str, dict[str, str]]]:
        """Return nothing: the summary says it all."""
        return []

    def figures(self) -> dict[str, float | None]:
        """Return the figures of a table as numbers."""
        return {
            "s a pass": self.seconds,
            "ms p50": self.timing.text_p50_ms,
            "ms p95": self.timing.text_p95_ms,
            "1: sent./s": self.sentences / self.seconds,
            f"{BATCH_SIZE}: sent./s": self.sentences / self.batch_seconds,
            "peak MB": self.timing.peak_megabytes,
        }

    def summary(self) -> dict[str, str]:
        """Return the figures of a table, the seconds with their standard deviation over passes."""
        peak = self.timing.peak_megabytes
        return {
            "s a pass": str(Score.of(self.timing.single)),
            "ms p50": f"{self.timing.text_p50_ms:.2f}",
            "ms p95": f"{self.timing.text_p95_ms:.2f}",
            "1: sent./s": f"{self.sentences / self.seconds:,.0f}",
            f"{BATCH_SIZE}: sent./s": f"{self.sentences / self.batch_seconds:,.0f}",
            "peak MB": "-" if peak is None else f"{peak:,.0f}",
        }


@dataclass(frozen=True)
class LatencyTask:
    """The sentences that models are timed on.

    Attributes:
        path: the file.
        sentences: both sides of every pair, in the file's order.
        skipped: rows left out, by reason.
        threads: threads of a model.
        progress: called with (what is done, sentences done, sentences in all), each pass's counted.
    """

    path: Path
    sentences: Sequence[str]
    skipped: Counter[str]
    threads: int
    progress: Progress
    needs_teacher: ClassVar[bool] = False

    @property
    def files(self) -> tuple[Path, ...]:
        """The file."""
        return (self.path,)

    @property
    def settings(self) -> dict[str, object]:
        """The machine: what was timed elsewhere says nothing about here."""
        return {"threads": self.threads, "processor": _processor()}

    @property
    def facts(self) -> dict[str, object]:
        """The file, how much is timed, and on what."""
        return {
            "data": str(self.path),
            "sentences": len(self.sentences),
            "passes": PASSES,
            "threads": self.threads,
            "processor": _processor(),
        }

    @property
    def notes(self) -> list[str]:
        """What was timed and where."""
        what = f"{len(self.sentences)} sentences one at a time, mean of {PASSES} passes"
        where = f"on a CPU with {self.threads} threads: {_processor()}"
        notes = [f"{what}, {where}; whatever else ran on the machine is in these figures"]
        if self.skipped:
            notes.append(f"{sum(self.skipped.values())} rows skipped ({describe_skipped(self.skipped)})")
        return notes

    def texts(self) -> Sequence[str]:
        """Return nothing: models are run, their vectors are not looked at."""
        return ()

    def score(self, subject: Subject, notes: list[str]) -> LatencyScores:
        """Time one model; one whose vectors only are cached is loaded for it.

        Raises:
            DataError: if it cannot be run.
        """
        model = subject.model.whole() if subject.model.whole is not None else subject.model
        name = f"time {subject.model.name}"

        def told(done: int) -> None:
            self.progress(name, done, 2 * PASSES * len(self.sentences))

        told(0)
        if model.source is None:
            notes.append(
                f"{subject.model.name} is in memory only: timed by its own encoder, beside whatever else "
                "this process holds; its memory is not known"
            )
            timing = measure(_sliced(model), self.sentences, passes=PASSES, batch_size=BATCH_SIZE, told=told)
            return LatencyScores(timing, len(self.sentences), "encoder in memory")
        timing = self._in_own_process(model, model.source, told)
        runtime = "onnxruntime" if model.contract is None else "sentence-transformers"
        return LatencyScores(timing, len(self.sentences), runtime)

    def _in_own_process(self, model: EvaluatedModel, source: Path, told: Callable[[int], None]) -> Timing:
        job = {
            "source": str(source.absolute()),
            "contract": None if model.contract is None else model.contract.to_json(),
            "texts": list(self.sentences),
            "passes": PASSES,
            "batch_size": BATCH_SIZE,
            "threads": self.threads,
        }
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(self.threads),
            "CUDA_VISIBLE_DEVICES": "",
            "TOKENIZERS_PARALLELISM": "false",
        }
        # A file for what is said on standard error: nobody reads it while the process runs.
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said,
            subprocess.Popen(
                [sys.executable, "-m", "distill.evaluation.stopwatch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
                encoding="utf-8",
                env=environment,
                # Python looks for packages in its folder first: here, not where the user happens to be.
                cwd=Path(str(distill.__file__)).parents[1],
            ) as process,
        ):
            try:
                timing = _listen(process, json.dumps(job), told, model.name)
            finally:
                process.kill()
            if timing is not None:
                return timing
            said.seek(0)
            last = (said.read().strip().splitlines() or ["no message"])[-1]
        raise DataError(f"{model.name} cannot be timed, its process broke off: {last}")


def read(request: Request) -> LatencyTask:
    """Read STS-B test in the request's folder.

    Raises:
        NotThereError: if it is not there.
        DataError: if no folder was given, or the file cannot be read.
    """
    folder = request.folder("latency")
    path = find_test_file(folder, _FILE)
    if path is None:
        raise NotThereError(f"{folder} holds no {_FILE}.tsv, on whose sentences models are timed")
    sts = read_pairs(path, "stsb")
    sentences = [text for pair in zip(sts.left, sts.right, strict=True) for text in pair]
    return LatencyTask(path, sentences, Counter(sts.skipped), cpu_threads(), request.progress)


def _listen(
    process: subprocess.Popen[str], job: str, told: Callable[[int], None], name: str
) -> Timing | None:
    """Hand the job over and return what comes back; None where the process ends without a word.

    Raises:
        DataError: if the process tells of an error.
    """
    stdin, stdout = process.stdin, process.stdout
    if stdin is None or stdout is None:
        raise AssertionError("started without pipes")
    # A process that broke off before it read the job is told of by the caller.
    with suppress(BrokenPipeError), stdin:
        stdin.write(job)
    for message in _messages(stdout):
        if "done" in message:
            told(int(message["done"]))
        elif "error" in message:
            raise DataError(f"{name} cannot be timed: {message['error']}")
        elif "timing" in message:
            return Timing(**message["timing"])
    return None


def _messages(lines: Iterable[str]) -> Iterable[dict[str, Any]]:
    """Yield the messages among ``lines``; libraries may print as well."""
    for line in lines:
        if line.startswith("{"):
            yield json.loads(line)


def _sliced(model: EvaluatedModel) -> Callable[[Sequence[str], int], object]:
    def encode(texts: Sequence[str], batch_size: int) -> object:
        return [model.encode(texts[row : row + batch_size]) for row in range(0, len(texts), batch_size)]

    return encode


def _processor() -> str:
    """Return what the CPU calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
