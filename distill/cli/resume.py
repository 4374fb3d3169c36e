"""What may be given beside ``--resume``: what the machine decides, and nothing that decides the student."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click
from click.core import ParameterSource

from embedcache.cli.options import F

MACHINE = ("device", "threads")
"""Settings of the machine, which a run may go on with others of."""


def resume_option(*allowed: str) -> Callable[[F], F]:
    """Return what adds ``--resume`` to a command.

    Args:
        allowed: parameters of the command that may be given anew.
    """
    options = [f"--{name.replace('_', '-')}" for name in allowed]
    return click.option(
        "--resume",
        "resumed",
        type=click.Path(path_type=Path),
        metavar="RUN",
        help="Go on with an interrupted run; its configuration is in its folder. "
        f"{', '.join(options[:-1])} and {options[-1]} may be given anew.",
    )


def refuse_settings(*allowed: str) -> None:
    """Refuse what would make a resumed run another run.

    Args:
        allowed: parameters of the command that may be given anew.

    Raises:
        click.UsageError: naming everything else that is given.
    """
    context = click.get_current_context()
    known = {parameter.name or "": parameter for parameter in context.command.params}
    given = [
        parameter.opts[0] if isinstance(parameter, click.Option) else parameter.make_metavar(context)
        for name, parameter in known.items()
        if name not in {"resumed", "as_json", *allowed}
        and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if given:
        options = [known[name].opts[0] for name in allowed]
        raise click.UsageError(
            f"--resume goes on with the configuration of the run: leave {', '.join(given)} out (only "
            f"{', '.join(options[:-1])} and {options[-1]} may be given anew)"
        )
