"""Base of all configurations: strict models whose fields say whether they change the result."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

Fraction = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
PositiveInt = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]

Affects = Literal["result", "seed", "place", "machine"]

Settings = dict[str, Any]
"""A configuration, or a part of one, as YAML has it: nested dictionaries."""


def setting(
    default: Any,
    text: str,
    *,
    affects: Affects = "result",
    option: str | None = None,
    common: bool = False,
    metavar: str | None = None,
) -> Any:
    """Return a field of a ``StrictConfig``.

    Args:
        default: the default; ``...`` for a field that has to be given.
        text: one line of help.
        affects: effect of the field: on a run's result, on the choice of a repetition, on places of files or
            the computation.
        option: name of the command-line option (``--lr``), or of the argument (``START``); None for a field
            that is set by ``--set`` only.
        common: show the option in the first group of ``--help``.
        metavar: placeholder of the value in ``--help``.
    """
    facts: dict[str, Any] = {"affects": affects, "option": option, "common": common, "metavar": metavar}
    return Field(default, description=text, json_schema_extra=facts)


class StrictConfig(BaseModel):
    """Base of all groups of settings: unknown keys, infinities and NaN are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False)

    def to_yaml(self) -> str:
        """Return the configuration as YAML that reads back to the same configuration."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)

    def identity(self) -> Settings:
        """Return the settings that decide how a run ends, the seed left out: nested dictionaries."""
        facts = self.model_dump(mode="json")
        for key in keys(type(self)):
            *groups, last = key.path.split(".")
            inside = facts
            for group in groups:
                inside = inside[group]
            if key.affects != "result":
                del inside[last]
        return {name: value for name, value in facts.items() if value != {}}

    def identity_digest(self) -> str:
        """Return the sha256 of ``identity`` as canonical JSON."""
        from embedcache.fsio import json_digest

        return json_digest(self.identity())


@dataclass(frozen=True)
class Key:
    """A setting of a configuration.

    Attributes:
        path: its dotted path.
        text: its help.
        annotation: its type, without ``None`` and without constraints.
        default: its default; None where there is none.
        affects, option, common, metavar: as for ``setting``.
    """

    path: str
    text: str
    annotation: Any
    default: Any
    affects: Affects
    option: str | None
    common: bool
    metavar: str | None

    @property
    def word(self) -> str | None:
        """The option's name as a keyword of Python: ``batch_size``."""
        return self.option.lstrip("-").replace("-", "_").lower() if self.option else None


def keys(model: type[BaseModel]) -> list[Key]:
    """Return the settings of a model, including those of its groups."""
    return list(_keys(model, ""))


def _keys(model: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in model.model_fields.items():
        kind = _plain(field.annotation)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _keys(kind, f"{prefix}{name}.")
        else:
            yield _key(f"{prefix}{name}", field, kind)


def _key(path: str, field: FieldInfo, kind: Any) -> Key:
    extra = field.json_schema_extra
    facts: dict[str, Any] = dict(extra) if isinstance(extra, dict) else {}
    return Key(
        path,
        field.description or "",
        kind,
        None if field.is_required() else field.default,
        facts.get("affects", "result"),
        facts.get("option"),
        facts.get("common", False),
        facts.get("metavar"),
    )


def default_held_out(rows: int) -> int:
    """Return the default number of ``rows`` to hold out; a score of fewer than ten is noise."""
    count = min(1000, rows // 50)
    return 0 if count < 10 else count


def _plain(annotation: Any) -> Any:
    """Return a type without ``None`` and without constraints; of several, the first."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not NoneType]
        lists = [kind for kind in kinds if get_origin(_plain(kind)) is list]
        return _plain((lists or kinds)[0])
    return annotation
