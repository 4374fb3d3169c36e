"""Registry of losses: settings, inputs and construction of each.

A loss is a class with ``register_loss``. Its settings are the keyword-only parameters of its
constructor; the others are facts of the run, of which it names those it needs: ``dimension``,
``student_widths``, ``teacher_widths`` and ``seed``.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from distill.errors import ConfigError, DataError
from distill.losses.base import DistillLoss
from distill.plugins import is_plugin, load_object

Targets = Literal["as they are", "unit vectors", "soft labels alone"]
Inside = Literal["tokens", "layers", "classes"]

LossT = TypeVar("LossT", bound=type[DistillLoss])

_LOSSES: dict[str, Loss] = {}


@dataclass(frozen=True)
class Loss:
    """A registered loss.

    Attributes:
        name: its name.
        make_from: its class.
        summary: one line on what it compares.
        views: views of each row that the student encodes.
        targets: vectors that are compared: as they are, scaled to length one, or none, but soft labels.
        inside: its inputs from inside the models beside vectors: token embeddings, layers, or the logits
            of their classifiers.
        full_queue: True if its queue starts full, of vectors of random rows; None without a queue.
        lr: default peak learning rate.
        batch_size: default rows per step.
    """

    name: str
    make_from: type[DistillLoss]
    summary: str
    views: int = 1
    targets: Targets = "unit vectors"
    inside: Inside | None = None
    full_queue: bool | None = None
    lr: float = 7e-4
    batch_size: int = 128

    @cached_property
    def schema(self) -> type[BaseModel]:
        """Model of its settings, with their types, defaults and help."""
        hints = typing.get_type_hints(self.make_from.__init__, include_extras=True)
        fields: dict[str, Any] = {
            name: (hints.get(name, Any), ... if parameter.default is parameter.empty else parameter.default)
            for name, parameter in self._parameters.items()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        config = ConfigDict(extra="forbid", allow_inf_nan=False)
        return create_model(f"{self.make_from.__name__}Settings", __config__=config, **fields)

    @property
    def reads_vectors(self) -> bool:
        """True if it compares vectors, False if soft labels alone."""
        return self.targets != "soft labels alone"

    @property
    def defaults(self) -> dict[str, Any]:
        """Settings with their defaults; None for one without a value, such as a learned temperature."""
        return {
            name: None if field.is_required() else field.default
            for name, field in self.schema.model_fields.items()
        }

    @property
    def help(self) -> dict[str, str]:
        """Settings with their help, the text in ``Annotated[float, "help"]``."""
        return {
            name: next((one for one in field.metadata if isinstance(one, str)), "")
            for name, field in self.schema.model_fields.items()
        }

    def settings(self, given: Mapping[str, Any], rows: int) -> dict[str, Any]:
        """Return ``given`` checked, with defaults filled in; settings without a value are left out.

        Args:
            given: name -> value.
            rows: rows there are to train on; a default queue takes at most half of them. One that starts full
                is made of training rows, and in a longer one a row would meet its own vector as a negative.

        Raises:
            ConfigError: if the loss does not take a setting, or not with this value.
        """
        values = dict(given)
        if self.full_queue is not None:
            values.setdefault("queue", min(self.defaults["queue"], max(1, rows // 2)))
        try:
            checked = self.schema.model_validate(values).model_dump()
        except ValidationError as error:
            raise ConfigError.joined(
                [self._problem(one) for one in error.errors(include_url=False)]
            ) from None
        return {name: value for name, value in checked.items() if value is not None}

    def make(self, settings: Mapping[str, Any], **facts: Any) -> DistillLoss:
        """Return the loss as a module.

        Args:
            settings: checked settings.
            facts: ``dimension`` of the vectors, ``student_widths`` and ``teacher_widths`` of the layers
                compared, ``seed`` of first values that are drawn; those it does not name are passed over.
        """
        return self.make_from(
            **{name: value for name, value in facts.items() if name in self._parameters}, **settings
        )

    def rows_apart(self, settings: Mapping[str, Any]) -> int:
        """Return the number of rows that its queue takes out of the training."""
        return int(settings["queue"]) if "rows apart" in self.make_from.needs(settings) else 0

    def refuse_long_queue(self, settings: Mapping[str, Any], rows: int) -> None:
        """Refuse a queue that is longer than the rows there are to train on.

        One that starts full could not be filled. One that starts empty would, from the second epoch on, hold
        the own vectors of more than half of the rows as negatives of them.

        Args:
            settings: checked settings.
            rows: training rows, including those that a queue takes out of the training.

        Raises:
            DataError: if the queue is too long.
        """
        count, apart = int(settings.get("queue", 0)), self.rows_apart(settings)
        most = max(rows - bool(apart), 0)
        if self.full_queue is None or count <= most:
            return
        raise DataError(
            f"{count} teacher vectors from {rows} training rows; give at most {most}, or train on more rows",
            "loss.queue",
        )

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.make_from).parameters

    def _problem(self, problem: Any) -> ConfigError:
        path = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            takes = ", ".join(self.schema.model_fields) or "no settings"
            return ConfigError(f"the loss {self.name} takes {takes}", f"loss.{path}")
        message = str(problem["msg"]).removeprefix("Value error, ")
        return ConfigError(f"{message} (found {problem['input']!r})", f"loss.{path}")


def register_loss(name: str, *, summary: str, **facts: Any) -> Callable[[LossT], LossT]:
    """Register a class as the loss ``name``; ``facts`` are further attributes of ``Loss``."""

    def register(cls: LossT) -> LossT:
        if name in _LOSSES and _LOSSES[name].make_from is not cls:
            raise ConfigError(f"there is a loss {name!r} already; register {cls.__name__} under another name")
        _LOSSES[name] = Loss(name, cls, summary, **facts)
        return cls

    return register


def loss_names() -> list[str]:
    """Return the names of all losses, in the order of their modules."""
    package = importlib.import_module("distill.losses")
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return list(_LOSSES)


def get_loss(name: str) -> Loss:
    """Return a loss by its name, or by ``package.module:Class`` or ``file.py:Class``.

    Raises:
        ConfigError: if there is none.
    """
    if is_plugin(name):
        module, _, attribute = name.rpartition(":")
        cls = load_object(module, attribute, ConfigError)
        if not (isinstance(cls, type) and issubclass(cls, DistillLoss)):
            raise ConfigError(f"{name} is not a subclass of DistillLoss", "loss.name")
        registered = next((loss for loss in _LOSSES.values() if loss.make_from is cls), None)
        return registered or Loss(name, cls, (inspect.getdoc(cls) or name).partition("\n")[0])
    names = loss_names()
    if name not in names:
        close = difflib.get_close_matches(name, names, n=1)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError(f"no loss {name!r}; {hint}'distill list losses' lists them", "loss.name")
    return _LOSSES[name]
