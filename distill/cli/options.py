"""Options of commands that train, generated from their configuration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource
from pydantic import BaseModel

from distill.config.base import Key, Settings, keys
from distill.config.recipes import find_recipe
from distill.config.sources import gather
from embedcache.cli.options import COMMON, HeadedCommand

C = TypeVar("C", bound=BaseModel)
F = TypeVar("F", bound=Callable[..., object])

# Heading in --help by the group of a key; in this order, after the common options.
_HEADINGS = {
    "student": "Student",
    "loss": "Loss",
    "optimizer": "Training",
    "training": "Training",
    "evaluation": "Evaluation",
    "stream": "Remote",
    "data": "Data",
}
_ADVANCED = "Advanced"
_SEPARATOR = "__"
_MACHINE = ("cache", "training.device", "training.threads")
_TYPES: dict[object, click.ParamType[Any]] = {int: click.INT, float: click.FLOAT, str: click.STRING}


class ConfigOption(click.Option):
    """Option of one key of a configuration, under a heading of ``--help``."""

    def __init__(self, declarations: Sequence[str], *, heading: str, **settings: Any) -> None:
        super().__init__(declarations, **settings)
        self.heading = heading


class ConfigCommand(HeadedCommand):
    """Command whose ``--help`` shows the groups of its configuration under headings."""

    headings = (*dict.fromkeys(_HEADINGS.values()), _ADVANCED)


def options_of(model: type[BaseModel], *, recipes: bool = True) -> Callable[[F], F]:
    """Return a decorator that adds the options of ``model``, and those for the sources of settings.

    The command hands all of them to ``Typed``, but for ``dump_config`` and ``as_json``.

    Args:
        model: the configuration.
        recipes: True if there are recipes for it.
    """
    known = [key for key in keys(model) if key.option is not None]

    def decorate(command: F) -> F:
        decorators = [_argument(key) if key.option.isupper() else _option(key) for key in known if key.option]
        for decorator in reversed([*decorators, *_source_options(recipes)]):
            command = decorator(command)
        return command

    return decorate


class Typed:
    """Settings that were typed after a command, and the sources they name.

    Args:
        model: the configuration.
        parameters: all parameters of the command; those of ``options_of`` are taken out of it.
    """

    def __init__(self, model: type[BaseModel], parameters: dict[str, Any]) -> None:
        self.recipe: str | None = parameters.pop("recipe", None)
        self.resumed: Path | None = parameters.pop("resumed")
        self._file: Path | None = parameters.pop("config_file")
        self._assignments: tuple[str, ...] = parameters.pop("assignments")
        self.options: dict[str, Any] = {}
        for key in keys(model):
            name = _parameter_name(key.path)
            if name in parameters:
                self.options[key.path] = _value(key, parameters.pop(name))

    def machine(self) -> dict[str, Any]:
        """Return the keyword arguments of a resumed run: its cache, device and threads.

        Raises:
            click.UsageError: naming other options that were typed, which would make it another run.
        """
        context = click.get_current_context()
        allowed = {*map(_parameter_name, _MACHINE), "resumed", "as_json"}
        typed = [
            one
            for one in context.command.params
            if context.get_parameter_source(one.name or "") is ParameterSource.COMMANDLINE
            and one.name not in allowed
        ]
        if typed:
            names = ", ".join(one.opts[-1] if one.opts[-1].startswith("-") else "START" for one in typed)
            raise click.UsageError(
                f"--resume keeps the run's configuration: leave out {names} (cache, device and threads may "
                "change)"
            )
        return {key.rpartition(".")[2]: self.options[key] for key in _MACHINE if key in self.options}

    def gather(self, kind: Literal["run", "finetune"] | None = None) -> Settings:
        """Return the typed options over the file and the recipe, which has to be for the command ``kind``."""
        recipe = find_recipe(self.recipe, kind) if self.recipe is not None else None
        return gather(self._file, self._assignments, self.options, recipe)


def _source_options(recipes: bool) -> list[Callable[[F], F]]:
    settings: dict[str, Any] = {"cls": ConfigOption, "heading": COMMON}
    recipe = click.option(
        "--recipe",
        metavar="NAME",
        help="Settings of a published experiment; all others win over it ('distill list recipes').",
        **settings,
    )
    path = click.Path(path_type=Path)
    return [
        *([recipe] if recipes else []),
        click.option(
            "--config", "config_file", type=path, metavar="FILE", help="A YAML configuration.", **settings
        ),
        click.option(
            "--set",
            "assignments",
            multiple=True,
            metavar="A.B=V",
            help="Set any key of the configuration, such as loss.tau=0.1; repeatable.",
            **settings,
        ),
        click.option(
            "--resume",
            "resumed",
            type=path,
            metavar="RUN",
            help="Finish an interrupted run; its configuration is in its folder.",
            **settings,
        ),
        click.option("--dump-config", is_flag=True, help="Print the configuration as YAML.", **settings),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.", **settings),
    ]


def _argument(key: Key) -> Callable[[F], F]:
    return click.argument(_parameter_name(key.path), metavar=key.option, required=False)


def _option(key: Key) -> Callable[[F], F]:
    group = key.path.partition(".")[0] if "." in key.path else ""
    heading = COMMON if key.common else _HEADINGS.get(group, _ADVANCED)
    settings: dict[str, Any] = {"cls": ConfigOption, "heading": heading, "metavar": key.metavar}
    text = key.text[:1].upper() + key.text[1:]
    if key.annotation is bool:
        settings |= {"is_flag": True, "default": None}
    elif get_origin(key.annotation) is list:
        settings |= {"multiple": True, "type": _TYPES.get(_item(key), click.STRING)}
    elif get_origin(key.annotation) is Literal:
        settings |= {"type": click.Choice([str(value) for value in get_args(key.annotation)])}
    else:
        settings["type"] = click.STRING if key.metavar == "SIZE" else _TYPES.get(key.annotation, click.STRING)
    if key.default is not None and key.annotation is not bool:
        text += f"  [default: {key.default}]"
    else:
        head, separator, tail = text.rpartition("; default: ")
        text = f"{head}.  [default: {tail}]" if separator else text
    if settings.get("multiple"):
        text += "  Repeatable."
    return click.option(key.option or "", _parameter_name(key.path), help=text, **settings)


def _item(key: Key) -> object:
    item = get_args(key.annotation)[0]
    return get_args(item)[0] if get_args(item) else item


def _value(key: Key, value: Any) -> Any:
    """Return a typed value in the form of the configuration: nothing for an empty list."""
    if get_origin(key.annotation) is not list:
        return value
    # One teacher is a word, several are a list.
    return value[0] if key.path == "teacher" and len(value) == 1 else list(value) or None


def _parameter_name(path: str) -> str:
    return path.replace(".", _SEPARATOR)
