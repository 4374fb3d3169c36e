"""All losses by name: how each is made, what it takes, and what it is trained with by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from distill.errors import DataError

if TYPE_CHECKING:
    from distill.config import LossConfig
    from distill.losses.base import DistillLoss

LossName = Literal[
    "mse",
    "cosine",
    "l2",
    "dual-l2",
    "skd",
    "ckd",
    "disco-ckd",
    "seed",
    "congen",
    "rkd",
    "simtde",
    "lrn-kd",
    "lmx-kd",
    "kd",
    "rkd-kd",
    "reaugkd",
]


@dataclass(frozen=True)
class LossFacts:
    """What can be said of a loss without loading torch.

    Attributes:
        summary: what it does, in a line.
        views: views of each row that the student encodes.
        targets: whether teacher's vectors are compared with as they are, or scaled to length one; the
            student's are treated alike; or that they are not looked at.
        settings: the keys of the ``loss`` group it takes, with their defaults; None where there is a reason
            for there being none, which the key's description tells.
        inside: what it looks at inside the models, beside their vectors: token embeddings, layers, or the
            logits of their classifiers.
        full_queue: whether its queue is full of vectors of random rows at the start; None without a queue.
        lr: peak learning rate used where the user gives none.
        batch_size: rows a step used where the user gives none.
    """

    summary: str
    views: int = 1
    targets: Literal["as they are", "unit vectors", "soft labels alone"] = "unit vectors"
    settings: Mapping[str, Any] = field(default_factory=dict)
    inside: Literal["tokens", "layers", "classes"] | None = None
    full_queue: bool | None = None
    lr: float = 7e-4
    batch_size: int = 128


_FINE_TUNING: dict[str, Any] = {"lr": 2e-5, "batch_size": 64}
_DISTRIBUTION = {"queue": 16384, "tau": 0.05, "teacher_tau": 0.05, "variant": "paper"}

LOSSES: dict[str, LossFacts] = {
    "mse": LossFacts("squared error to the teacher's vector, mean over dimensions", targets="as they are"),
    "cosine": LossFacts("one minus the cosine to the teacher's vector"),
    "l2": LossFacts("squared distance of unit vectors"),
    "dual-l2": LossFacts("l2 of two views", views=2),
    "skd": LossFacts("dual-l2, and the distance of the views from each other", views=2),
    "ckd": LossFacts(
        "find the own teacher vector among those of the batch and of past batches (DistilCSE)",
        settings={"queue": 65536, "tau": None},
        full_queue=False,
    ),
    "disco-ckd": LossFacts(
        "find the own teacher vector among those of a queue (DisCo)",
        settings={"queue": 16384, "tau": 0.05},
        full_queue=True,
    ),
    "seed": LossFacts(
        "the teacher's distribution of similarity over a queue",
        settings=_DISTRIBUTION,
        full_queue=True,
    ),
    "congen": LossFacts(
        "seed of two views, of which the teacher has encoded one (ConGen)",
        views=2,
        settings={**_DISTRIBUTION, "alpha": 0.5},
        full_queue=True,
    ),
    "rkd": LossFacts(
        "the teacher's distances and angles among the rows of a batch",
        targets="as they are",
        settings={"distance": 1.0, "angle": 2.0},
    ),
    "simtde": LossFacts(
        "squared error to the teacher's vector, and to its token embeddings (SimTDE)",
        targets="as they are",
        settings={"alpha": 0.5, "over": "tokens", "embeddings": "block", "scale": "paper", "hidden": 0.0},
        inside="tokens",
    ),
    "lrn-kd": LossFacts(
        "squared error to the teacher's vector: SimTDE's baseline, for the last two layers of the teacher",
        targets="as they are",
    ),
    "lmx-kd": LossFacts(
        "squared error to the teacher's vector, and to its layers through learned matrices: needs the live "
        "teacher (--teacher online)",
        targets="as they are",
        settings={"hidden": 1.0, "scale": "paper"},
        inside="layers",
    ),
    "kd": LossFacts(
        "the teacher's soft labels at a temperature, and the corpus's labels: for classifiers (Hinton)",
        targets="soft labels alone",
        settings={"tau": 4.0, "soft": 0.9},
        inside="classes",
        **_FINE_TUNING,
    ),
    "rkd-kd": LossFacts(
        "kd, and the teacher's distances and angles among the rows of a batch: for classifiers",
        targets="as they are",
        settings={"tau": 4.0, "soft": 0.9, "distance": 1.0, "angle": 2.0},
        inside="classes",
        **_FINE_TUNING,
    ),
    "reaugkd": LossFacts(
        "the teacher's soft labels, and its distribution of similarity over a batch: for classifiers that "
        "look their neighbours up (ReAugKD)",
        settings={"tau": 0.07, "alpha": 1.0, "soft": 1.0},
        inside="classes",
        **_FINE_TUNING,
    ),
}


def needs_live_teacher(config: LossConfig) -> bool:
    """Return whether a loss, its settings filled in, looks at layers, which no cache holds."""
    return bool(LOSSES[config.name].inside and config.hidden)


def needs_token_table(config: LossConfig) -> bool:
    """Return whether a loss, its settings filled in, looks at the teacher's token embeddings."""
    return bool(LOSSES[config.name].inside == "tokens" and config.alpha)


def needs_labels(config: LossConfig) -> bool:
    """Return whether a loss, its settings filled in, looks at the corpus's own labels."""
    return config.soft is not None and config.soft < 1


def refuse_long_queue(config: LossConfig, rows: int) -> None:
    """Refuse a queue that is longer than the rows there are to train on.

    One that starts full could not be filled. One that starts empty would, from the second epoch on, hold the
    own vectors of more than half of the rows that are trained on as negatives of them.

    Args:
        config: the loss, its settings filled in.
        rows: the training rows, those that a queue takes out of the training among them.

    Raises:
        DataError: if it is.
    """
    starts_full = LOSSES[config.name].full_queue
    apart = config.variant == "code"
    most = max(rows - int(apart), 0)
    count = config.queue or 0
    if starts_full is None or count <= most:
        return
    why = (
        f"a queue of {count} vectors that starts full takes as many training rows"
        f"{' out of the training' if apart else ''}"
        if starts_full
        else f"a queue of {count} vectors, more than an epoch has, holds most rows' own vector as a negative"
    )
    raise DataError(
        f"loss.queue: {why}, and there are {rows}: give --queue N with at most {most}, or train on more rows"
    )


def make_loss(
    config: LossConfig,
    dimension: int,
    *,
    widths: tuple[Sequence[int], Sequence[int]] = ((), ()),
    seed: int = 0,
) -> DistillLoss:
    """Return the loss ``config`` names; its settings are filled in.

    Args:
        config: the name and the settings.
        dimension: width of the vectors.
        widths: of the layers that are compared, the student's and the teacher's.
        seed: of first values that are drawn.
    """
    from distill.losses import (
        classification,
        contrastive,
        inside,
        pointwise,
        queue_distribution,
        relational,
    )

    settings = {name: getattr(config, name) for name in LOSSES[config.name].settings}
    plain: dict[str, Callable[..., DistillLoss]] = {
        "mse": pointwise.MSELoss,
        "cosine": pointwise.CosineLoss,
        "l2": pointwise.L2Loss,
        "dual-l2": pointwise.DualL2Loss,
        "skd": pointwise.SKDLoss,
        "rkd": relational.RKDLoss,
        "simtde": inside.SimTDELoss,
        "lrn-kd": inside.LRNKDLoss,
        "kd": classification.KDLoss,
        "rkd-kd": classification.RKDKDLoss,
        "reaugkd": classification.ReAugKDLoss,
    }
    against_a_queue: dict[str, Callable[..., DistillLoss]] = {
        "ckd": contrastive.CKDLoss,
        "disco-ckd": contrastive.DisCoCKDLoss,
        "seed": queue_distribution.SEEDLoss,
        "congen": queue_distribution.ConGenLoss,
    }
    if config.name == "lmx-kd":
        return inside.LMXKDLoss(*widths, **settings, seed=seed)
    if config.name in plain:
        return plain[config.name](**settings)
    return against_a_queue[config.name](dimension, **settings)
