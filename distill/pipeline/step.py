"""What a step of a pipeline is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from distill.pipeline.digests import Facts
from distill.training.tracking import OnProgress
from embedcache.progress import NO_PROGRESS, Progress

# Where something lies, and what it is computed on, does not change what comes out.
PLACES = (
    *("cache", "out", "overwrite", "start", "model", "teacher_model"),
    *("device", "devices", "engine", "address", "requests", "threads", "batch_tokens"),
    *("stream.mirror", "stream.limit", "stream.require_signature"),
)
"""Keys of settings that steps do not depend on."""

Done = Mapping[str, Facts]
"""The outputs of the steps that are done, by their names."""


@dataclass(frozen=True)
class Watch:
    """Whom to tell how far a step is.

    Attributes:
        build: receives the progress of a build.
        train: told while a student is trained.
        evaluate: told (model, sentences done, sentences in all).
        say: told, in a line, what is worth knowing afterwards too.
    """

    build: Progress = NO_PROGRESS
    train: OnProgress | None = None
    evaluate: Callable[[str, int, int], None] = lambda name, done, total: None
    say: Callable[[str], None] = lambda line: None


class Step(Protocol):
    """One step of a pipeline."""

    @property
    def name(self) -> str:
        """The step's name."""
        ...

    def facts(self, done: Done) -> Facts:
        """Return what the outcome depends on, as it is now.

        Args:
            done: the outputs of the steps before, by their names.

        Raises:
            ConfigError: if something that it reads is not there.
        """
        ...

    def outputs(self, before: Facts) -> Facts:
        """Return what is there of the outputs that were there ``before``."""
        ...

    def vacant(self) -> bool:
        """Return whether nothing is there yet that it could replace."""
        ...

    def do(self, watch: Watch, done: Done, *, mine: bool, unchanged: bool) -> Facts:
        """Do it and return the outputs.

        Args:
            watch: whom to tell.
            done: the outputs of the steps before, by their names.
            mine: whether what lies there is the pipeline's own, which it may replace.
            unchanged: whether it had the same facts then, so that it may be gone on with.
        """
        ...
