"""A run's configuration: strict, complete, and the only thing that decides what a run does.

Unknown keys are errors, and every error is reported at once with its dotted path. A configuration comes from
a YAML file, then ``--set a.b=v``, then flags; later ones win.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from distill.errors import ConfigError
from distill.losses.registry import LOSS_DEFAULTS

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]

# Small corpora are seen more often: a student needs about so many rows of practice, within these bounds.
_TARGET_ROWS = 600_000
_EPOCHS = (3, 20)
_BANK = 65536
_EVALUATIONS_A_RUN = 20
_FEWEST_STEPS_BETWEEN = 50
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)


class StudentConfig(_Strict):
    """The student."""

    spec: str = Field(
        default="layers:3", description="hub id, folder, or layers:K, layers:first:K, layers:0,2,5"
    )
    head: Literal["auto", "linear", "none"] = Field(
        default="auto", description="linear head: where widths differ, always, never"
    )
    pooling: Literal["mean", "cls", "cls-before-pooler", "pooler", "last"] | None = Field(
        default=None, description="pooling of a student folder; default: as it says, else mean"
    )
    max_length: PositiveInt | None = Field(
        default=None, description="tokens after which a text is cut; default: as the teacher"
    )
    dropout: Fraction = Field(default=0.0, description="dropout while training")


class LossConfig(_Strict):
    """The loss."""

    name: Literal["mse", "cosine", "ckd"] = Field(default="mse", description="the loss")
    tau: Positive | None = Field(default=None, description="ckd: a fixed temperature; default: learned")
    bank: Count | None = Field(
        default=None, description="ckd: teacher vectors kept as negatives; default: 65536"
    )


class OptimizerConfig(_Strict):
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


class TrainingConfig(_Strict):
    """How long and in what pieces."""

    epochs: PositiveInt | None = Field(
        default=None, description="default: 3, more for corpora under 200 000 rows"
    )
    batch_size: PositiveInt | None = Field(default=None, description="rows a step; default: by loss")
    limit: PositiveInt | None = Field(default=None, description="train on the first so many distinct rows")
    where: Annotated[str, Field(min_length=1)] | None = Field(
        default=None, description="SQL predicate over the corpus's rows: train on those that satisfy it"
    )
    mixed_precision: Literal["auto", "no", "bf16", "fp16"] = Field(
        default="auto", description="auto: bf16 where native"
    )
    device: str = Field(default="auto", description="auto, cpu, cuda, cuda:1 ...")
    threads: PositiveInt | None = Field(default=None, description="CPU threads; default: all cores")


class EvaluationConfig(_Strict):
    """What the best checkpoint is chosen by."""

    data: str | None = Field(
        default=None,
        description="TSV with score, sentence1, sentence2 (a development set); default: held-out rows",
    )
    held_out: Count | None = Field(
        default=None, description="rows kept out of training; default: 2 %, at most 1000"
    )
    every: PositiveInt | None = Field(
        default=None, description="steps between evaluations; default: 20 evaluations a run"
    )
    patience: PositiveInt | None = Field(
        default=None, description="stop after so many evaluations without a new best"
    )


class TrackingConfig(_Strict):
    """What is written down on the way."""

    log_every: PositiveInt = Field(default=50, description="steps between lines of metrics.jsonl")
    tensorboard: bool = Field(default=False, description="also write TensorBoard files to RUN/tensorboard")


class RunConfig(_Strict):
    """Everything a run depends on."""

    cache: str = Field(description="the cache's folder")
    corpus: str | None = Field(
        default=None, description="corpus in the cache; may be left out where there is one"
    )
    teacher: str | list[str] | None = Field(
        default=None,
        description="teacher in the cache, or a list of several; may be left out where there is one",
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
        description="where to load the (first) teacher from, for layers: students; default: as it was built",
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
    evaluation: EvaluationConfig = EvaluationConfig()
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

    def resolved(self, rows: int) -> RunConfig:
        """Return the configuration with every default that depends on the loss or the corpus filled in.

        Args:
            rows: distinct rows of the corpus, after ``training.where`` and ``training.limit``.

        Raises:
            ConfigError: if a setting is given that the loss has no use for.
        """
        loss = self.loss
        if loss.name == "ckd":
            loss = loss.model_copy(update={"bank": _BANK if loss.bank is None else loss.bank})
        elif loss.tau is not None or loss.bank is not None:
            raise ConfigError(
                f"loss.tau and loss.bank belong to ckd, and the loss is {loss.name}: leave them out, "
                "or use --loss ckd"
            )
        defaults = LOSS_DEFAULTS[self.loss.name]
        held_out = self.evaluation.held_out
        if held_out is None:
            held_out = min(1000, rows // 50)
        batch_size = self.training.batch_size or defaults.batch_size
        low, high = _EPOCHS
        epochs = self.training.epochs or max(low, min(high, round(_TARGET_ROWS / max(1, rows))))
        steps = epochs * -(-max(1, rows - held_out) // batch_size)
        return self.model_copy(
            update={
                "loss": loss,
                "optimizer": self.optimizer.model_copy(update={"lr": self.optimizer.lr or defaults.lr}),
                "training": self.training.model_copy(update={"epochs": epochs, "batch_size": batch_size}),
                "evaluation": self.evaluation.model_copy(
                    update={
                        "held_out": held_out,
                        "every": self.evaluation.every
                        or max(_FEWEST_STEPS_BETWEEN, -(-steps // _EVALUATIONS_A_RUN)),
                    }
                ),
            }
        )

    def to_yaml(self) -> str:
        """Return the configuration as YAML that reads back to the same configuration."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


def load_config(
    file: Path | None = None,
    assignments: Sequence[str] = (),
    flags: Mapping[str, object] | None = None,
) -> RunConfig:
    """Put a configuration together.

    Args:
        file: a YAML file.
        assignments: ``a.b=v`` texts; values are read as YAML.
        flags: dotted path -> value; None values are left out.

    Raises:
        ConfigError: naming every problem with its dotted path.
    """
    values: dict[str, Any] = {}
    if file is not None:
        try:
            loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"no configuration file {file}") from None
        except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{file} is not readable as YAML: {' '.join(str(error).split())}") from error
        if not isinstance(loaded, dict):
            raise ConfigError(f"{file} holds {_kind(loaded)}, expected keys and values")
        values = loaded
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        if not separator or not path:
            raise ConfigError(f"--set {assignment!r}: expected the form a.b=v, as in --set optimizer.lr=3e-4")
        _assign(values, path, _read_value(text))
    for path, value in (flags or {}).items():
        if value is not None:
            _assign(values, path, value)
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        problems = "; ".join(_describe(problem) for problem in error.errors(include_url=False))
        raise ConfigError(f"the configuration cannot be used: {problems}") from error


def _kind(value: object) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


def _read_value(text: str) -> object:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"--set: {text!r} is no YAML value") from error
    # YAML reads 3e-4 as a word; people mean the number. In quotes it is a word.
    return float(text) if isinstance(value, str) and _EXPONENT.fullmatch(text) else value


def _assign(values: dict[str, Any], path: str, value: object) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        inner = values.setdefault(parent, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{path}: {parent} is {inner!r}, not a group of keys")
        values = inner
    values[last] = value


def _describe(problem: Any) -> str:
    path = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"{path}: unknown key{_suggestion(path)}"
    if problem["type"] == "missing":
        return f"{path}: missing" + (" (give --cache DIR)" if path == "cache" else "")
    message = problem["msg"].removeprefix("Value error, ")
    return f"{path}: {message} (found {problem['input']!r})"


def _suggestion(path: str) -> str:
    import difflib

    close = difflib.get_close_matches(path, [key for key, _ in describe_keys()], n=1, cutoff=0.5)
    return f", did you mean {close[0]}?" if close else ""


def describe_keys(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[tuple[str, str]]:
    """Return (dotted path, description) of every key there is."""
    found = []
    for name, field in model.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += describe_keys(kind, f"{prefix}{name}.")
        else:
            found.append((prefix + name, field.description or ""))
    return found


SHORT_KEYS = {
    "student": "student.spec",
    "head": "student.head",
    "max_length": "student.max_length",
    "loss": "loss.name",
    "tau": "loss.tau",
    "bank": "loss.bank",
    "lr": "optimizer.lr",
    "schedule": "optimizer.schedule",
    "warmup": "optimizer.warmup",
    "weight_decay": "optimizer.weight_decay",
    "epochs": "training.epochs",
    "batch_size": "training.batch_size",
    "limit": "training.limit",
    "where": "training.where",
    "mixed_precision": "training.mixed_precision",
    "device": "training.device",
    "threads": "training.threads",
    "dev": "evaluation.data",
    "held_out": "evaluation.held_out",
    "eval_every": "evaluation.every",
    "patience": "evaluation.patience",
    "tensorboard": "tracking.tensorboard",
}
"""Names without their group, as flags and keyword arguments have them, and the keys they stand for."""
