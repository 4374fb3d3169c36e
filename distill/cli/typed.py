"""Errors in the words of the command line: instead of a key, the option that was typed for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click
from click.core import ParameterSource

from distill.errors import ConfigError, DataError, StudentError


@contextmanager
def naming_options(short_keys: Mapping[str, str]) -> Iterator[None]:
    """Let an error inside the block name the options that were typed, where it names their keys.

    What a file, a recipe or ``--set`` says keeps its key: so it was typed, or can be looked for. A key that
    is put forward for an unknown one of these stays a key as well.

    Args:
        short_keys: name of a parameter of the command -> the key it stands for; others are keys themselves.
    """
    context = click.get_current_context()
    typed = {
        short_keys.get(name, name): _shown(parameter, context)
        for parameter in context.command.params
        if (name := parameter.name) is not None
        and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    }
    try:
        yield
    except (ConfigError, DataError, StudentError) as error:
        told = str(error)
        for key, option in typed.items():
            told = re.sub(_named(key), option, told)
        if told == str(error):
            raise
        raise type(error)(told) from error


def _named(key: str) -> str:
    """Return the pattern of a key where a message names it."""
    if "." in key:
        return rf"(?<![\w./-])(?<!did you mean ){re.escape(key)}(?![\w/-]|\.\w)"
    # One without its group is a word like others, but for where a message says what it is about.
    return rf"(?:^|(?<=: )|(?<=; )){key}(?=: )"


def _shown(parameter: click.Parameter, context: click.Context) -> str:
    if isinstance(parameter, click.Option):
        return next((name for name in parameter.opts if name.startswith("--")), parameter.opts[0])
    return parameter.make_metavar(context).strip("[]")
