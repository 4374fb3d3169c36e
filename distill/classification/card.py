"""What the model card of a classifier says that was taught."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distill.card import CardFacts, write_card
from distill.training.card import duration, folder_name

if TYPE_CHECKING:
    from distill.classification.teach import TeachRun, TeachTraining


def write_teach_card(run: TeachRun, training: TeachTraining) -> None:
    """Write the model card of a finished teaching's classifier.

    Args:
        run: the teaching.
        training: what it was done with.
    """
    config, before = run.config, training.start.record
    layers = {} if config.student.layers is None else {"layers": config.student.layers}
    write_card(
        run.best,
        CardFacts(
            student=folder_name(config.start if before is None else before.student),
            teachers=[],
            corpus={
                "name": training.rows.name,
                "trained on": run.rows,
                "labels": run.balance,
                "digest": training.rows.digest,
                **({} if run.in_dev is None else {"rows with a text of the development set": run.in_dev}),
            },
            loss="cross entropy",
            settings={
                **layers,
                **duration(config.training),
                "batch size": config.training.batch_size,
                "peak learning rate": config.optimizer.lr,
                "schedule": config.optimizer.schedule,
                "dropout": config.student.dropout,
                "seed": config.seed,
            },
            scores={name: value * 100 for name, value in run.scores.items()},
            parameters=run.parameters,
            dimension=training.dimension,
            seconds=run.result.seconds,
            labels=run.labels,
        ),
    )
