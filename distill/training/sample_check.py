"""Samples of a remote's vectors are compared with the live teacher before anything is trained on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from distill.errors import OtherVectorsError
from distill.training.device import resolve_device, seeded
from distill.training.processes import is_first_process
from distill.training.tracking import OnProgress, TrainProgress
from embedcache.check.live import Computing
from embedcache.check.verify.deep import BAD

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from distill.config import RunConfig
    from distill.data.dataset import DistillDataset
    from distill.data.loader import CheckRows
    from distill.training.place import Place
    from embedcache.cache import CachedTeacher


class SampleChecks:
    """Compares samples of each teacher's vectors where they come from a remote; of others it does nothing.

    A window is compared before it is trained on, and only where it has shards that were not compared before:
    as a rule in the first epoch alone. Nothing is fetched that the run would not fetch. The teacher is loaded
    for each comparison and dropped afterwards, so it takes no memory while the student is trained.

    Args:
        place: where the vectors come from.
        config: the resolved configuration.
        dataset: what is trained on.
        on_progress: told what is worth knowing.
    """

    def __init__(
        self, place: Place, config: RunConfig, dataset: DistillDataset, on_progress: OnProgress | None = None
    ) -> None:
        self._mirror = place.mirror if is_first_process() and not config.stream.no_sample_check else None
        self._config, self._dataset, self._on_progress = config, dataset, on_progress
        self._told: set[str] = set()

    def check_first_window(self) -> None:
        """Compare a sample of the rows that are trained on first; of all rows where there are no windows.

        Raises:
            OtherVectorsError: if they are not the teacher's.
            RemoteError: if a shard cannot be had.
            StorageError: if there is no room for a shard.
        """
        if self._mirror is not None:
            windows = self._dataset.order.windows(0)
            self._check(None if windows is None else windows.window(0))

    @property
    def check_later(self) -> CheckRows | None:
        """Compares a sample of rows in the midst of training; None where no rows are left to compare.

        It takes places among the rows trained on, and raises as :meth:`check_first_window`. Only the thread
        that trains may call it: loading a model changes settings of torch that all threads share.
        """
        has_windows = self._mirror is not None and self._dataset.order.windows(0) is not None
        return self._check if has_windows else None

    def _check(self, rows: NDArray[np.integer] | None) -> None:
        """Compare a sample of rows, by their places among those trained on; None stands for all of these."""
        targets, training = self._dataset.targets, self._config.training
        places = None if rows is None else np.sort(rows)
        models = [self._config.teacher_model, *(None for _ in targets.teachers[1:])]
        # The student must not depend on whether a sample was taken: loading a model may draw random numbers.
        with seeded(self._config.seed, resolve_device(training.device)):
            for teacher, positions, model in zip(targets.teachers, targets.positions, models, strict=True):
                computing = Computing(model, device=training.device, threads=training.threads)
                self._compare(teacher, positions, places, computing)

    def _compare(
        self,
        teacher: CachedTeacher,
        positions: NDArray[np.integer],
        places: NDArray[np.integer] | None,
        computing: Computing,
    ) -> None:
        if self._mirror is None:
            return

        def texts_of(sample: NDArray[np.int64]) -> list[str]:
            return self._dataset.texts(self._dataset.rows[sample if places is None else places[sample]])

        if places is not None:
            positions = positions[places]
        try:
            check = self._mirror.compare_sample(teacher, positions, texts_of, computing)
        except torch.OutOfMemoryError:
            self._tell(f"sample of {teacher.name}: not compared: no memory for it beside the student")
            return
        if check is not None and check.verdict == BAD:
            raise OtherVectorsError(check.told)
        if check is not None:
            compared = f"{check.sampled:,} texts compared: " if check.sampled else ""
            self._tell(f"sample of {teacher.name}: {compared}{check.verdict}: {check.told}")

    def _tell(self, text: str) -> None:
        """Tell a note, once for all windows."""
        if self._on_progress is not None and text not in self._told:
            self._told.add(text)
            self._on_progress(TrainProgress("note", 0, 0, text=text))
