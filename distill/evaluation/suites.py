"""The registry of suites."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from distill.evaluation.tasks import Request, Task


_OLD = {name: f"old_{name}" for name in ("sts", "geometry", "latency", "fidelity")}


@dataclass(frozen=True)
class Suite:
    """A set of evaluation tasks.

    Attributes:
        summary: what they are, in a few words.
        module: the module whose function ``read`` takes a request and returns the task.
        average: its headline figure in the JSON of a model's report.
        reads_sentences: whether ``data`` is a file of plain sentences, not a folder of test files.
        on_request: whether it runs only when it is named, because it takes minutes for each model.
    """

    summary: str
    module: str
    average: str = "average"
    reads_sentences: bool = False
    on_request: bool = False

    def read(self, request: Request) -> Task:
        """Read the suite's data.

        Raises:
            NotThereError: if none of its files are there.
            DataError: if they cannot be used.
        """
        # Imported when read: listing suites must not load numpy or scipy.
        read = import_module(f"distill.evaluation.{_OLD.get(self.module, self.module)}").read
        return cast("Callable[[Request], Task]", read)(request)


SUITES: dict[str, Suite] = {
    "sts": Suite("similarity of sentence pairs as people judge it: STS12-16, STS-B, SICK-R", "sts"),
    "sts-multilingual": Suite(
        "similarity in other languages and across two: STS 2017, translated STS-B", "sts_multilingual"
    ),
    "transfer": Suite("classifiers on frozen vectors: MR, CR, SUBJ, MPQA, SST2, TREC, MRPC", "transfer"),
    "nli": Suite("classifiers on frozen vectors of two sentences: SICK-E, SNLI", "nli"),
    "retrieval": Suite("documents that answer a query; captions of one image", "retrieval"),
    "entities": Suite("entity resolution: queries against a catalogue", "entities"),
    "geometry": Suite(
        "alignment, uniformity, anisotropy and effective rank on STS-B", "geometry", "effective_rank"
    ),
    "latency": Suite(
        "seconds and memory on a CPU, one sentence at a time and in batches, on STS-B test",
        "latency",
        "batch_1_sentences_per_second",
        on_request=True,
    ),
    "fidelity": Suite(
        "likeness to the teacher's vectors on unlabelled sentences",
        "fidelity",
        "similarity_spearman",
        reads_sentences=True,
    ),
}
