"""Configuration of a distillation run and its groups."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from typing_extensions import Self

from distill.config.base import (
    Count,
    Fraction,
    NotNegative,
    Positive,
    PositiveInt,
    Seed,
    Settings,
    StrictConfig,
    default_held_out,
    setting,
)
from distill.students.spec import default_loss
from embedcache.sizes import parse_size

ONLINE = "online"
"""Prefix of ``teacher`` for a teacher that is itself run in training: ``online`` or ``online:NAME``."""

Pooling = Literal["mean", "cls", "cls-before-pooler", "pooler", "last"]

# Rows a student is trained on, by the choice of epochs within these bounds.
_TARGET_ROWS = 600_000
_EPOCHS = (3, 20)
_EVALUATIONS_PER_RUN = 20
_MIN_STEPS_BETWEEN = 50
_FEWEST_EVALUATIONS = 4


class StudentConfig(StrictConfig):
    """The student."""

    spec: str = setting(
        "layers:3",
        "short name, hub id, folder, or form such as layers:3 ('distill list students')",
        option="--student",
        common=True,
        metavar="SPEC",
    )
    head: Literal["auto", "linear", "tanh", "none"] = setting(
        "auto", "linear head: where widths differ, always, always with tanh, never", option="--head"
    )
    drop_head: bool = setting(
        False, "score and save the student without the head it is trained with", option="--drop-head"
    )
    pooling: Pooling | None = setting(
        None, "pooling of a student folder; default: its own, else mean", option="--pooling"
    )
    max_length: PositiveInt | None = setting(
        None, "tokens after which a text is cut; default: the teacher's", option="--max-length"
    )
    dropout: Fraction = setting(0.0, "dropout in training", option="--dropout")


class LossConfig(StrictConfig):
    """The loss and its settings, side by side in YAML: ``loss: {name: simtde, alpha: 0.5}``.

    Attributes:
        settings: name -> value, as given; ``RunConfig.resolved`` checks them against the loss and fills
            in the rest.
    """

    name: str = setting(
        ...,
        "name of a loss ('distill list losses'), or package.module:Class, or file.py:Class; "
        "default: what did best for the kind of student",
        option="--loss",
        common=True,
        metavar="NAME",
    )
    settings: Settings = setting({}, "settings of the loss ('distill list losses')")

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        given = {key: value for key, value in values.items() if key not in ("name", "settings")}
        given |= values.get("settings") or {}
        name = {"name": values["name"]} if "name" in values else {}
        return {**name, "settings": {key: value for key, value in given.items() if value is not None}}

    @model_serializer(mode="wrap")
    def _flat(self, serialise: SerializerFunctionWrapHandler) -> Settings:
        values = serialise(self)
        settings = values.pop("settings", {})
        return {**values, **settings}


class OptimizerConfig(StrictConfig):
    """AdamW and its schedule."""

    lr: Positive | None = setting(
        None, "peak learning rate; default: the loss's (7e-4 for most)", option="--lr", common=True
    )
    betas: tuple[Fraction, Fraction] = setting((0.9, 0.98), "AdamW's betas")
    eps: Positive = setting(1e-8, "AdamW's epsilon")
    weight_decay: NotNegative = setting(
        0.01, "weight decay, except of biases and LayerNorm weights", option="--weight-decay"
    )
    schedule: Literal["cosine", "linear", "constant"] = setting(
        "cosine", "learning rate after the warm-up", option="--schedule"
    )
    warmup: NotNegative = setting(
        0.06, "warm-up: below 1 a share of all steps, else a number of steps", option="--warmup"
    )
    max_grad_norm: NotNegative = setting(1.0, "norm that gradients are clipped to; 0: never")


class LoopConfig(StrictConfig):
    """Length of a training, its batches, and the machine."""

    epochs: PositiveInt | None = setting(
        None,
        "passes over the rows; default: 3, up to 20 below 200,000 rows",
        option="--epochs",
        common=True,
    )
    max_steps: PositiveInt | None = setting(
        None, "end after N steps, which the learning rate's schedule spans", option="--max-steps"
    )
    batch_size: PositiveInt | None = setting(
        None, "rows per step; default: the loss's (128 for most)", option="--batch-size", common=True
    )
    order: Literal["bucketed", "random"] = setting(
        "bucketed", "batches of rows of like length (fast), or of random rows", option="--order"
    )
    # An unquoted no is False in YAML.
    mixed_precision: Annotated[
        Literal["auto", "no", "bf16", "fp16"], BeforeValidator(lambda it: "no" if it is False else it)
    ] = setting("auto", "precision; auto is bf16 where that is faster", option="--mixed-precision")
    device: str = setting(
        "auto", "device: auto, cpu, cuda, cuda:1 ...", affects="machine", option="--device", metavar="NAME"
    )
    threads: PositiveInt | None = setting(
        None, "CPU threads; default: all cores", affects="machine", option="--threads"
    )
    checkpoint_every: PositiveInt | None = setting(
        None,
        "steps between checkpoints; default: at evaluations, at least a minute apart",
        affects="machine",
        option="--checkpoint-every",
    )

    def with_epochs(self, rows: int, default: int) -> Self:
        """Return a copy with the epochs filled in: ``default``, or as many as ``max_steps`` take.

        Args:
            rows: rows to train on.
            default: epochs where neither they nor ``max_steps`` are given.
        """
        if self.max_steps is not None:
            default = -(-self.max_steps // self._steps_per_epoch(rows))
        return self.model_copy(update={"epochs": self.epochs or default})

    def count_steps(self, rows: int) -> int:
        """Return the steps of a run over ``rows`` rows; epochs and batch size have to be filled in."""
        steps = (self.epochs or 1) * self._steps_per_epoch(rows)
        return min(steps, self.max_steps or steps)

    def _steps_per_epoch(self, rows: int) -> int:
        return -(-max(1, rows) // (self.batch_size or 1))


class TrainingConfig(LoopConfig):
    """Length of a training, its batches, the machine, and the rows."""

    limit: PositiveInt | None = setting(None, "train on the first N distinct rows", option="--limit")
    views: Annotated[list[str], Field(min_length=1)] | None = setting(
        None,
        "view of a row to train on, the one that the teacher encoded first; default: original, and all "
        "others of the corpus for losses of two views",
        option="--view",
        metavar="NAME",
    )
    where: Annotated[str, Field(min_length=1)] | None = setting(
        None,
        "train on rows that satisfy this predicate, as in \"label = 'news' and characters < 200\"",
        option="--where",
        metavar="SQL",
    )


class SelectionConfig(StrictConfig):
    """Data that the best checkpoint is chosen on, evaluations in training, and early stopping."""

    every: PositiveInt | None = setting(
        None,
        "steps between evaluations; default: 20 a run (of finetune 10), but none too close to the last",
        option="--eval-every",
    )
    patience: PositiveInt | None = setting(
        None, "stop after N evaluations without a new best", option="--patience"
    )
    patience_epochs: Positive | None = setting(
        None, "stop N epochs after the best", option="--patience-epochs"
    )
    data: str | None = setting(
        None,
        "development pairs or triplets, of a classifier labelled rows, to choose the best checkpoint on; "
        "default: held-out rows",
        option="--dev",
        common=True,
        metavar="FILE",
    )
    rows: list[str] | None = setting(
        None,
        "development rows such as split=dev, of --dev or else of finetune's file",
        option="--dev-rows",
        metavar="COLUMN=VALUE",
    )


class EvaluationConfig(SelectionConfig):
    """Data that the best checkpoint is chosen on; for classifiers also its columns."""

    held_out: Count | None = setting(
        None,
        "rows kept out of training, with --dev too; default: 2 %, at most 1000, none below 10",
        option="--held-out",
    )
    text: str | None = setting(None, "column of --dev's texts; default: by its name", option="--dev-text")
    text2: str | None = setting(None, "column of --dev's second texts", option="--dev-text2")
    label: str | None = setting(None, "column of --dev's scores or labels", option="--dev-label")

    @property
    def of_dev(self) -> list[str]:
        """Keys given that only a development file takes."""
        return [f"evaluation.{key}" for key in ("rows", "text", "text2", "label") if getattr(self, key)]


def _read_size(size: object) -> object:
    if not isinstance(size, str):
        return size
    try:
        return parse_size(size)
    except ValueError as error:
        raise ValueError(f"{error}, as in --cache-limit 20GB") from None


class StreamConfig(StrictConfig):
    """Transfer of vectors from a remote; not for a cache of this machine."""

    mirror: str | None = setting(
        None,
        "folder of what comes from a remote; default: one in the user's cache folder",
        affects="place",
        option="--mirror",
        metavar="DIR",
    )
    limit: Annotated[PositiveInt | None, BeforeValidator(_read_size)] = setting(
        None,
        "bytes of a remote's shards to keep at a time, as in 20GB: rows come in windows; default: all",
        option="--cache-limit",
        metavar="SIZE",
    )
    require_signature: str | None = setting(
        None,
        "file of ed25519 keys: use only pushes signed by one of them",
        affects="place",
        option="--require-signature",
        metavar="KEYFILE",
    )


class TrackingConfig(StrictConfig):
    """Logs."""

    log_every: PositiveInt = setting(50, "steps between lines of metrics.jsonl", affects="place")
    log_with: list[Literal["tensorboard", "wandb", "trackio"]] = setting(
        [], "tracker to log to, beside metrics.jsonl", affects="place", option="--log-with", metavar="NAME"
    )


OVERWRITE: Any = setting(
    False, "replace a run that is in the folder", affects="place", option="--overwrite", common=True
)
SEED: Any = setting(
    0,
    "seed of row order, held-out rows, new weights and dropout",
    affects="seed",
    option="--seed",
    common=True,
)
"""Settings that every kind of training has."""


class RunConfig(StrictConfig):
    """Configuration of a distillation run."""

    cache: str = setting(
        ...,
        "folder of the cache, or name or URL of a remote",
        affects="place",
        option="--cache",
        common=True,
        metavar="DIR",
    )
    corpus: str | None = setting(
        None,
        "corpus in the cache, of a remote also NAME@DIGEST; default: the only one",
        option="--corpus",
        common=True,
        metavar="NAME",
    )
    teacher: str | Annotated[list[str], Field(min_length=1)] | None = setting(
        None,
        "teacher in the cache, or several; online:NAME also runs it, for losses that read its layers; "
        "default: the only one",
        option="--teacher",
        common=True,
        metavar="NAME",
    )
    teacher_weights: list[Positive] | None = setting(
        None, "relative weights of several teachers; default: equal", option="--teacher-weight"
    )
    target_dim: PositiveInt | None = setting(
        None, "reduce the teachers' vectors to N dimensions by PCA", option="--target-dim"
    )
    teacher_model: str | None = setting(
        None,
        "where to load the (first) teacher from, for students made from it; default: as it was built",
        affects="place",
        option="--teacher-model",
        metavar="SPEC",
    )
    out: str | None = setting(
        None,
        "folder of the run; default: runs/CORPUS-STUDENT-LOSS",
        affects="place",
        option="--out",
        common=True,
        metavar="DIR",
    )
    overwrite: bool = OVERWRITE
    seed: Seed = SEED
    student: StudentConfig = StudentConfig()
    loss: LossConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    stream: StreamConfig = StreamConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="before")
    @classmethod
    def _choose_loss(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        loss, student = values.get("loss", {}), values.get("student", {})
        if not isinstance(loss, dict) or "name" in loss:
            return values
        spec = student.get("spec") if isinstance(student, dict) else None
        return {**values, "loss": {**loss, "name": default_loss(str(spec or StudentConfig().spec))}}

    @property
    def online(self) -> bool:
        """True if the teacher itself runs in training."""
        return isinstance(self.teacher, str) and self.teacher.partition(":")[0] == ONLINE

    @property
    def cached_teacher(self) -> str | list[str] | None:
        """Teacher, or teachers, in the cache; None where that is left out."""
        if isinstance(self.teacher, str) and self.online:
            return self.teacher.partition(":")[2] or None
        return self.teacher

    def resolved(self, rows: int) -> RunConfig:
        """Return the configuration with every default filled in that depends on the loss or the corpus.

        Args:
            rows: distinct rows of the corpus, after ``training.where`` and ``training.limit``.

        Raises:
            ConfigError: if there is no such loss, or it does not take a setting.
        """
        from distill.losses.registry import get_loss

        kind = get_loss(self.loss.name)
        given = self.evaluation.held_out
        held_out = default_held_out(rows) if given is None else given
        settings = kind.settings(self.loss.settings, rows - held_out)
        trained_on = rows - held_out - kind.rows_apart(settings)
        training = self.training.model_copy(
            update={"batch_size": self.training.batch_size or kind.batch_size}
        ).with_epochs(trained_on, max(_EPOCHS[0], min(_EPOCHS[1], round(_TARGET_ROWS / max(1, rows)))))
        steps = training.count_steps(trained_on)
        # Fewer evaluations in a short run, but a few.
        apart = min(_MIN_STEPS_BETWEEN, -(-steps // _FEWEST_EVALUATIONS))
        every = self.evaluation.every or max(apart, -(-steps // _EVALUATIONS_PER_RUN))
        changes: dict[str, tuple[StrictConfig, dict[str, Any]]] = {
            "loss": (self.loss, {"settings": settings}),
            "optimizer": (self.optimizer, {"lr": self.optimizer.lr or kind.lr}),
            "evaluation": (self.evaluation, {"held_out": held_out, "every": every}),
        }
        groups = {name: group.model_copy(update=update) for name, (group, update) in changes.items()}
        return self.model_copy(update={**groups, "training": training})
