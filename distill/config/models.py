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

from distill.config.base import (
    Count,
    Fraction,
    Positive,
    PositiveInt,
    Seed,
    Settings,
    StrictConfig,
    default_held_out,
    setting,
)
from distill.config.training import (
    OVERWRITE,
    SEED,
    LoopConfig,
    OptimizerConfig,
    Pooling,
    SelectionConfig,
    TrackingConfig,
)
from distill.students.spec import default_loss
from embedcache.sizes import parse_size

ONLINE = "online"
"""Prefix of ``teacher`` for a teacher that is itself run in training: ``online`` or ``online:NAME``."""

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
        "auto",
        "linear head; auto: only if widths differ; tanh: followed by tanh; none: never",
        option="--head",
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
        if isinstance(values, dict) and isinstance(values.get("loss", {}), dict):
            student = values.get("student")
            spec = student.get("spec") if isinstance(student, dict) else None
            loss = {"name": default_loss(str(spec or StudentConfig().spec)), **values.get("loss", {})}
            return {**values, "loss": loss}
        return values

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
