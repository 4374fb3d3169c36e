"""A run's configuration: strict, complete, and the only thing that decides what a run does.

How one is put together from files, assignments and flags is in :mod:`distill.config_sources`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal, Protocol

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from distill.errors import ConfigError
from distill.losses.registry import LOSSES, LossName
from distill.selection_config import RunEvaluationConfig, SelectionConfig
from distill.strict_config import Count, Fraction, Positive, PositiveInt, Seed, StrictConfig
from distill.students.spec import student_forms
from embedcache.sizes import parse_size

if TYPE_CHECKING:
    from typing_extensions import Self

ONLINE = "online"
"""What ``teacher`` says where the teacher itself is run in training; its name may follow after a colon."""

# Small corpora are seen more often: a student needs about so many rows of practice, within these bounds.
_TARGET_ROWS = 600_000
_EPOCHS = (3, 20)
_EVALUATIONS_A_RUN = 20
_FEWEST_STEPS_BETWEEN = 50


class StudentConfig(StrictConfig):
    """The student."""

    spec: str = Field(
        default="layers:3",
        description=f"short name, hub id, folder, or {student_forms()}",
    )
    head: Literal["auto", "linear", "tanh", "none"] = Field(
        default="auto",
        description="linear head: where widths differ, always, always and followed by tanh, never",
    )
    drop_head: bool = Field(
        default=False, description="score and save the student without the head it is trained with"
    )
    pooling: Literal["mean", "cls", "cls-before-pooler", "pooler", "last"] | None = Field(
        default=None, description="pooling of a student folder; default: as it says, else mean"
    )
    max_length: PositiveInt | None = Field(
        default=None, description="tokens after which a text is cut; default: as the teacher"
    )
    dropout: Fraction = Field(default=0.0, description="dropout while training")


class LossConfig(StrictConfig):
    """The loss and what it takes; ``distill losses`` lists which loss takes what."""

    name: LossName = Field(default="mse", description="the loss")
    variant: Literal["paper", "code"] | None = Field(
        default=None, description="seed, congen: when a batch enters the queue; default: paper"
    )
    tau: Positive | None = Field(
        default=None,
        description="(student's) temperature; kd, rkd-kd: of soft labels; default: by loss, learned for ckd",
    )
    teacher_tau: Positive | None = Field(
        default=None, description="seed, congen: the teacher's temperature; default: 0.05"
    )
    alpha: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="congen: what the first view counts for; simtde: what token embeddings do; reaugkd: what "
        "relations do; default: 0.5, 1 for reaugkd",
    )
    soft: Fraction | None = Field(
        default=None,
        description="kd, rkd-kd, reaugkd: what the teacher's soft labels count for; the rest is the corpus's "
        "labels'; default: 0.9, 1 for reaugkd",
    )
    queue: Count | None = Field(
        default=None,
        description="teacher vectors kept; default: 65536 for ckd, else 16384; at most half the rows",
    )
    distance: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="rkd, rkd-kd: weight of the distances; default: 1"
    )
    angle: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="rkd, rkd-kd: weight of the angles; default: 2"
    )
    over: Literal["tokens", "vocabulary"] | None = Field(
        default=None, description="simtde: tokens that are compared, the batch's or all; default: tokens"
    )
    embeddings: Literal["block", "word"] | None = Field(
        default=None,
        description="simtde: what is compared of them: what the whole embedding block gives but for the "
        "position, or the matrices' rows; default: block",
    )
    scale: Literal["paper", "relative"] | None = Field(
        default=None,
        description="simtde, lmx-kd: errors as they are, or relative to their targets' mean square; "
        "default: paper",
    )
    hidden: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="lmx-kd, simtde: what the layers count for, with --teacher online; default: 1 and 0",
    )

    @field_validator("alpha")
    @classmethod
    def _check_alpha(cls, alpha: float | None, others: ValidationInfo) -> float | None:
        if alpha is not None and alpha > 1 and others.data.get("name") != "reaugkd":
            raise ValueError("it is a share of the loss: give 0 to 1")
        return alpha


class OptimizerConfig(StrictConfig):
    """AdamW and its schedule."""

    lr: Positive | None = Field(default=None, description="peak learning rate; default: by loss")
    betas: tuple[Fraction, Fraction] = Field(default=(0.9, 0.98), description="AdamW's betas")
    eps: Positive = Field(default=1e-8, description="AdamW's epsilon")
    weight_decay: Annotated[float, Field(ge=0)] = Field(
        default=0.01, description="not on biases and LayerNorm weights"
    )
    schedule: Literal["cosine", "linear", "constant"] = Field(
        default="cosine", description="after the warm-up"
    )
    warmup: Annotated[float, Field(ge=0)] = Field(
        default=0.06, description="below 1: share of all steps; 1 and above: number of steps"
    )
    max_grad_norm: Annotated[float, Field(ge=0)] = Field(
        default=1.0, description="gradients are clipped to it; 0: never"
    )


class LoopConfig(StrictConfig):
    """How long, in what pieces and where."""

    epochs: PositiveInt | None = Field(
        default=None,
        description="default: 3, more for corpora under 200 000 rows; with max_steps, as many as they take",
    )
    max_steps: PositiveInt | None = Field(
        default=None,
        description="end after so many steps, over which the learning rate's schedule goes, or after the "
        "epochs where they are given and over sooner; default: all steps of the epochs",
    )
    batch_size: PositiveInt | None = Field(default=None, description="rows a step; default: by loss")
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = Field(
        default="auto", description="auto: bf16 where native"
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1 ...")
    threads: PositiveInt | None = Field(default=None, description="CPU threads; default: all cores")
    checkpoint_every: PositiveInt | None = Field(
        default=None,
        description="steps between checkpoints to resume from; default: at evaluations, a minute apart or "
        "more",
    )

    def with_epochs(self, rows: int, default: int) -> Self:
        """Return it with the epochs filled in: ``default``, or as many as ``max_steps`` take.

        Args:
            rows: rows to train on.
            default: epochs where neither they nor ``max_steps`` are given.
        """
        if self.max_steps is not None:
            default = -(-self.max_steps // self._steps_an_epoch(rows))
        return self.model_copy(update={"epochs": self.epochs or default})

    def count_steps(self, rows: int) -> int:
        """Return the steps of a run over ``rows`` rows; epochs and batch size have to be filled in."""
        steps = (self.epochs or 1) * self._steps_an_epoch(rows)
        return min(steps, self.max_steps or steps)

    def _steps_an_epoch(self, rows: int) -> int:
        return -(-max(1, rows) // (self.batch_size or 1))


class TrainingConfig(LoopConfig):
    """How long, in what pieces and where, and on which rows."""

    limit: PositiveInt | None = Field(default=None, description="train on the first so many distinct rows")
    views: Annotated[list[str], Field(min_length=1)] | None = Field(
        default=None,
        description="views of a row to train on, the one that the teacher has encoded first; default: "
        "original, and for losses of two views all others of the corpus, one after the other",
    )
    where: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="SQL predicate over the corpus's rows: train on those that satisfy it"
    )


def _read_size(size: object) -> object:
    if not isinstance(size, str):
        return size
    try:
        return parse_size(size)
    except ValueError as error:
        raise ValueError(f"{error}, as in --cache-limit 20GB") from None


class StreamConfig(StrictConfig):
    """How the vectors of a remote come; not for a cache of this machine."""

    mirror: str | None = Field(
        default=None,
        description="folder of the mirror; default: one in the user's cache folder",
    )
    limit: Annotated[PositiveInt | None, BeforeValidator(_read_size)] = Field(
        default=None,
        description="bytes of a remote's shards that are kept at a time, as in 20GB; rows then come in "
        "windows of half of it; default: all",
    )
    require_signature: str | None = Field(
        default=None, description="file of public ed25519 keys: use only what one of them has signed"
    )


class TrackingConfig(StrictConfig):
    """What is written down on the way."""

    log_every: PositiveInt = Field(default=50, description="steps between lines of metrics.jsonl")
    tensorboard: bool = Field(default=False, description="also write TensorBoard files to RUN/tensorboard")


class TrainerConfig(Protocol):
    """What the training loop reads of a configuration, whatever else is in it."""

    @property
    def seed(self) -> int:
        """Of the order of rows and of dropout."""
        ...

    @property
    def optimizer(self) -> OptimizerConfig:
        """AdamW and its schedule."""
        ...

    @property
    def training(self) -> LoopConfig:
        """How long, in what pieces and where."""
        ...

    @property
    def evaluation(self) -> SelectionConfig:
        """When the student is scored."""
        ...

    @property
    def tracking(self) -> TrackingConfig:
        """What is written down on the way."""
        ...

    def to_yaml(self) -> str:
        """Return the configuration as YAML that reads back to the same configuration."""
        ...


class RunConfig(StrictConfig):
    """Everything a run depends on."""

    cache: str = Field(description="the cache's folder, or the name or URL of a remote")
    corpus: str | None = Field(
        default=None,
        description="corpus in the cache, of a remote also NAME@DIGEST; may be left out where there is one",
    )
    teacher: str | list[str] | None = Field(
        default=None,
        description="teacher in the cache, or a list of several; may be left out where there is one; "
        "online or online:NAME: the teacher itself is run too, for losses that look at its layers",
    )
    teacher_weights: list[Positive] | None = Field(
        default=None,
        description="what each of several teachers counts for, relative to the others; default: all the same",
    )
    target_dim: PositiveInt | None = Field(
        default=None,
        description="width that the teachers' vectors are reduced to by PCA; default: as they are",
    )
    teacher_model: str | None = Field(
        default=None,
        description="where to load the (first) teacher from, for students made from it; default: as it was "
        "built",
    )
    out: str | None = Field(default=None, description="the run's folder; default: runs/CORPUS-STUDENT-LOSS")
    overwrite: bool = Field(default=False, description="replace a run that is in the folder already")
    seed: Seed = Field(
        default=0, description="of the order of rows, the held-out rows, new weights and dropout"
    )
    student: StudentConfig = StudentConfig()
    loss: LossConfig = LossConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    stream: StreamConfig = StreamConfig()
    evaluation: RunEvaluationConfig = RunEvaluationConfig()
    tracking: TrackingConfig = TrackingConfig()

    @field_validator("teacher")
    @classmethod
    def _check_teachers(cls, teacher: str | list[str] | None) -> str | list[str] | None:
        if isinstance(teacher, list):
            if not teacher:
                raise ValueError("an empty list of teachers; name one or several, or leave the key out")
            if repeated := [name for name in dict.fromkeys(teacher) if teacher.count(name) > 1]:
                raise ValueError(f"{', '.join(repeated)} more than once; name each teacher once")
        return teacher

    @field_validator("teacher_weights")
    @classmethod
    def _check_weights(cls, weights: list[float] | None, others: ValidationInfo) -> list[float] | None:
        teachers = others.data.get("teacher")
        count = len(teachers) if isinstance(teachers, list) else 1
        # Where the teachers themselves are wrong, that is what is told.
        if weights is not None and "teacher" in others.data and (count < 2 or len(weights) != count):
            raise ValueError(
                f"{len(weights)} for {count} teacher{'s'[: count - 1]}; give one for each of several, or none"
            )
        return weights

    @property
    def online(self) -> bool:
        """Whether the teacher itself is run in training."""
        return isinstance(self.teacher, str) and self.teacher.partition(":")[0] == ONLINE

    @property
    def cached_teacher(self) -> str | list[str] | None:
        """The teacher, or teachers, in the cache; None where that is left out."""
        if isinstance(self.teacher, str) and self.online:
            return self.teacher.partition(":")[2] or None
        return self.teacher

    def resolved(self, rows: int) -> RunConfig:
        """Return the configuration with every default that depends on the loss or the corpus filled in.

        Args:
            rows: distinct rows of the corpus, after ``training.where`` and ``training.limit``.

        Raises:
            ConfigError: if a setting is given that the loss has no use for.
        """
        facts = LOSSES[self.loss.name]
        held_out = self.evaluation.held_out
        if held_out is None:
            held_out = min(1000, rows // 50)
        loss = self._resolved_loss(rows - held_out)
        low, high = _EPOCHS
        apart = loss.queue or 0 if loss.variant == "code" else 0
        trained_on = rows - held_out - apart
        training = self.training.model_copy(
            update={"batch_size": self.training.batch_size or facts.batch_size}
        ).with_epochs(trained_on, max(low, min(high, round(_TARGET_ROWS / max(1, rows)))))
        steps = training.count_steps(trained_on)
        every = self.evaluation.every or max(_FEWEST_STEPS_BETWEEN, -(-steps // _EVALUATIONS_A_RUN))
        return self.model_copy(
            update={
                "loss": loss,
                "optimizer": self.optimizer.model_copy(update={"lr": self.optimizer.lr or facts.lr}),
                "training": training,
                "evaluation": self.evaluation.model_copy(update={"held_out": held_out, "every": every}),
            }
        )

    def _resolved_loss(self, rows: int) -> LossConfig:
        """Return the loss with its settings filled in, given how many rows there are to train on."""
        facts = LOSSES[self.loss.name]
        given = self.loss.model_dump(exclude_none=True, exclude={"name"})
        if strangers := [f"loss.{key}" for key in given if key not in facts.settings]:
            takes = ", ".join(f"loss.{key}" for key in facts.settings) or "no settings"
            raise ConfigError(
                f"{', '.join(strangers)}: the loss {self.loss.name} takes {takes}; leave the others out, or "
                "choose another --loss ('distill losses' lists them)"
            )
        defaults = dict(facts.settings)
        if "queue" in defaults:
            # One that starts full is made of training rows; in one that holds more than an epoch, a row
            # would meet its own vector as a negative.
            defaults["queue"] = min(defaults["queue"], max(1, rows // 2))
        return self.loss.model_copy(update={**defaults, **given})
