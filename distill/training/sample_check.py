"""A sample of a remote's vectors is compared with the live teacher before anything is trained on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from distill.training.processes import is_first_process
from distill.training.tracking import OnProgress, TrainProgress
from embedcache.check.live import Computing
from embedcache.check.verify.deep import BAD, OK
from embedcache.errors import RemoteError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from distill.config import RunConfig
    from distill.data.dataset import DistillDataset
    from distill.training.place import Place


def check_samples(
    place: Place, config: RunConfig, dataset: DistillDataset, on_progress: OnProgress | None = None
) -> None:
    """Compare a sample of each teacher's vectors, where they come from a remote; of others do nothing.

    It is drawn from rows of the first window, so nothing is fetched that the run would not fetch.

    Args:
        place: where the vectors come from.
        config: the resolved configuration.
        dataset: what is trained on.
        on_progress: told what is worth knowing.

    Raises:
        RemoteError: if they are not the teacher's; or a shard cannot be had.
        StorageError: if there is no room for a shard.
    """
    mirror, targets = place.mirror, dataset.targets
    if mirror is None or config.stream.no_sample_check or not is_first_process():
        return
    windows = dataset.order.windows(0)
    window = None if windows is None else np.sort(windows.window(0))

    def texts_of(places: NDArray[np.int64]) -> list[str]:
        return dataset.texts(dataset.rows[places if window is None else window[places]])

    models = [config.teacher_model, *(None for _ in targets.teachers[1:])]
    for teacher, positions, model in zip(targets.teachers, targets.positions, models, strict=True):
        computing = Computing(model, device=config.training.device, threads=config.training.threads)
        rows = positions if window is None else positions[window]
        check = mirror.compare_sample(teacher, rows, texts_of, computing)
        if check is not None and check.verdict == BAD:
            raise RemoteError(check.told)
        if check is not None and check.verdict != OK and on_progress is not None:
            said = f"sample of {teacher.name}: {check.verdict}: {check.told}"
            on_progress(TrainProgress("note", 0, 0, text=said))
