"""What the model card of a fine-tuned student says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distill.card import CardFacts, write_card
from distill.training.card import duration, folder_name

if TYPE_CHECKING:
    from distill.training.finetune import FinetuneRun, FinetuneTraining

LOSS = "infonce"
"""The loss of every fine-tuning."""


def write_finetune_card(run: FinetuneRun, training: FinetuneTraining) -> None:
    """Write the model card of a finished fine-tuning's student.

    Args:
        run: the fine-tuning.
        training: what it was done with.
    """
    config, before = run.config, training.start.record
    selected_by, best = training.selected_by, run.result.best_score
    student = config.student
    head = {"head": f"{student.head}{', dropped after training' if student.drop_head else ''}"}
    stage1: dict[str, object] = {}
    if before:
        stage1 = {"corpus": before.corpus.name, "rows": before.rows, "loss": before.loss}
    write_card(
        run.best,
        CardFacts(
            student=folder_name(before.student if before else config.start),
            teachers=[(one.name, one.contract) for one in (before.teachers if before else [])],
            corpus={
                "name": training.rows.name,
                "texts of a row": ("one", "anchor and positive", "anchor, positive, hard negative")[
                    len(training.rows.columns) - 1
                ],
                "trained on": run.rows,
                "digest": training.rows.digest,
                **({} if run.in_dev is None else {"rows with a text of the development set": run.in_dev}),
            },
            loss=LOSS,
            settings={
                "temperature": config.loss.tau,
                **duration(config.training),
                "batch size": config.training.batch_size,
                "peak learning rate": config.optimizer.lr,
                "schedule": config.optimizer.schedule,
                "dropout": student.dropout,
                "seed": config.seed,
                **({} if student.head == "none" else head),
            },
            scores={} if best is None or selected_by is None else {selected_by: best * 100},
            parameters=run.parameters,
            dimension=training.dimension,
            in_target_space=training.is_in_target_space,
            seconds=run.result.seconds,
            stage1=stage1,
        ),
    )
