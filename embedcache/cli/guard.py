"""How both commands end: one line for what went wrong, the right exit code, a traceback only on request."""

from __future__ import annotations

import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress

import click

from embedcache.transfer_defaults import THREADS

INTERRUPTED = 130


def guarded(
    group: click.Group,
    name: str,
    domain_errors: tuple[type[Exception], ...],
    before_telling: Callable[[], None] = lambda: None,
) -> None:
    """Run ``group`` as the process's command line and exit.

    Exit codes: 0 for success, 2 for what the user can mend, 1 for failures underneath, 130 after Ctrl-C.

    Args:
        group: the command line.
        name: the command's name, which with the subcommand's, and its subcommand's, begins error lines.
        domain_errors: errors raised on purpose; each has an ``exit_code``.
        before_telling: called before an error is printed.
    """
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    who = " ".join([name, *_subcommands(group, arguments)])
    try:
        group.main(args=arguments, prog_name=name, standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        before_telling()
        click.echo(f"{who}: {_one_line(error)}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as stop:
        # click turns a Ctrl-C into an Abort without words.
        advice = str(stop.__cause__ or stop) or "run the same command again"
        click.echo(f"\n{name}: interrupted; whatever was stored is whole, {advice}", err=True)
        _leave_transfers()
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has gone; there is nobody to tell, and Python must not try at exit either.
        sys.stdout = None
        sys.exit(1)
    except domain_errors as error:
        before_telling()
        if debug:
            traceback.print_exc()
        click.echo(f"{who}: {' '.join(str(error).split())}", err=True)
        sys.exit(int(getattr(error, "exit_code", 1)))
    except OSError as error:
        if debug:
            traceback.print_exc()
        where = f" ({error.filename})" if error.filename else ""
        click.echo(f"{who}: {error.strerror or error}{where}; --debug shows where", err=True)
        sys.exit(1)


def _subcommands(group: click.Group, arguments: Sequence[str]) -> list[str]:
    """Return which subcommand the arguments name, and which of that; a group's own options take no values."""
    found: list[str] = []
    command: click.Command | None = group
    for word in (argument for argument in arguments if not argument.startswith("-")):
        command = command.commands.get(word) if isinstance(command, click.Group) else None
        if command is None:
            break
        found.append(word)
    return found


def _leave_transfers() -> None:
    """End here where a transfer that was given up goes on: Python would wait for it, for minutes maybe."""
    if any(thread.name.startswith(f"{THREADS}_") for thread in threading.enumerate()):
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError):
                stream.flush()
        os._exit(INTERRUPTED)


def _one_line(error: click.ClickException) -> str:
    """Return click's message as our own messages are written, with where the options are explained."""
    message = " ".join(error.format_message().split()).rstrip(".")
    if message[1:2].islower():
        message = message[0].lower() + message[1:]
    context = error.ctx if isinstance(error, click.UsageError) else None
    return message if context is None else f"{message} (see '{context.command_path} --help')"
