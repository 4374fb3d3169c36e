"""What the model card of a run's student says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from distill.card import CardFacts, write_card
from distill.training.describe import is_in_target_space

if TYPE_CHECKING:
    from distill.config.models import LoopConfig, RunConfig
    from distill.data.dataset import DistillDataset
    from distill.data.targets import Targets
    from distill.training.run import Run


def folder_name(spec: str) -> str:
    """Return the spec; of a folder its name alone, which says as much to others as its place does."""
    folder = Path(spec).expanduser()
    return folder.resolve().name if folder.is_dir() else spec


def duration(training: LoopConfig) -> dict[str, object]:
    """Return how long a training goes, as settings of its card."""
    steps = {} if training.max_steps is None else {"steps at most": training.max_steps}
    return {"epochs": training.epochs, **steps}


def write_run_card(run: Run, dataset: DistillDataset, dimension: int, selected_by: str | None) -> None:
    """Write the model card of a finished run's student.

    Args:
        run: the run.
        dataset: what it was trained on.
        dimension: width of the student's vectors.
        selected_by: what its best checkpoint was chosen by; None where there was nothing to choose by.
    """
    config, result = run.config, run.result
    where = config.training.where
    selected = {} if where is None else {"selected by": where, "selected": run.selected}
    scores = {}
    if result.best_score is not None and selected_by is not None:
        scores = {name: value * 100 for name, value in run.scores.items()}
    write_card(
        run.best,
        CardFacts(
            student=folder_name(config.student.spec),
            teachers=[
                (teacher.origin.get("model_id", teacher.name), teacher.contract.to_json())
                for teacher in dataset.targets.teachers
            ],
            corpus={
                "name": run.corpus,
                "rows": len(dataset.corpus),
                **selected,
                "trained on": run.rows,
                "digest": dataset.corpus.info.digest,
            },
            loss=config.loss.name,
            settings={
                **duration(config.training),
                "batch size": config.training.batch_size,
                "peak learning rate": config.optimizer.lr,
                "schedule": config.optimizer.schedule,
                "seed": config.seed,
                **_loss_settings(config),
                **_targets_settings(dataset.targets),
            },
            scores=scores,
            parameters=run.parameters,
            notes=run.notes,
            dimension=dimension,
            in_target_space=is_in_target_space(config),
            labels=() if dataset.soft is None else dataset.soft.names,
            seconds=result.seconds,
        ),
    )


def _targets_settings(targets: Targets) -> dict[str, object]:
    """Return how the targets were made, for the card; nothing for one teacher's vectors as they are."""
    if targets.combination is None:
        return {}
    found: dict[str, object] = {}
    if len(targets.names) > 1:
        shares = zip(targets.names, targets.combination.shares, strict=True)
        found["shares of the teachers"] = ", ".join(f"{name} {share:.4g}" for name, share in shares)
    if targets.combination.energy is not None:
        found["targets reduced by PCA"] = (
            f"from {sum(targets.combination.widths)} to {targets.dimension} dimensions, "
            f"which keep {targets.combination.energy:.2%} of their squared length"
        )
    return found


def _loss_settings(config: RunConfig) -> dict[str, object]:
    """Return the settings of the loss and the views, as far as there are any."""
    given = config.loss.model_dump(exclude={"name"}, exclude_none=True)
    found: dict[str, object] = {f"loss {name.replace('_', ' ')}": value for name, value in given.items()}
    if config.training.views and len(config.training.views) > 1:
        found["views"] = ", ".join(config.training.views)
    if config.student.drop_head:
        found["head"] = "dropped: vectors are those before the head it was trained with"
    return found
