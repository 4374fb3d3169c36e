"""How both commands end: one line for what went wrong, the right exit code, a traceback only on request."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

import click

INTERRUPTED = 130

_stops: list[int] = []
"""The signals that have stopped this command.

A list, for it takes no lock: a second signal may come in the middle of the first one's handler.
"""


def interrupt(number: int, frame: object) -> None:
    """Handle a signal that stops the command: note it, and end what is being done.

    Raises:
        KeyboardInterrupt: always.
    """
    _stops.append(number)
    raise KeyboardInterrupt


def guarded(
    group: click.Group,
    name: str,
    domain_errors: tuple[type[Exception], ...],
    before_telling: Callable[[], None] = lambda: None,
) -> None:
    """Run ``group`` as the process's command line and exit.

    Exit codes: 0 for success, 2 for what the user can mend, 1 for failures underneath, 130 after Ctrl-C: with
    whatever exception the command then ends, for libraries turn an interrupt into errors of their own.

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
        with _interrupts_noted():
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
        # click turns a Ctrl-C into an Abort without words, and ends the line that has the terminal's ^C.
        _end_interrupted(name, str(stop.__cause__ or stop))
    except BrokenPipeError:
        # Whoever read our output has gone; there is nobody to tell, and Python must not try at exit either.
        sys.stdout = None
        sys.exit(1)
    except Exception as error:
        if isinstance(error, domain_errors):
            told = f"{who}: {' '.join(str(error).split())}"
        elif isinstance(error, OSError):
            where = f" ({error.filename})" if error.filename else ""
            told = f"{who}: {error.strerror or error}{where}; --debug shows where"
        elif _stops:
            told = ""
        else:
            raise
        if _stops:
            # The terminal's ^C stands alone on its line.
            told = f"\n{told}".rstrip()
        else:
            before_telling()
        if debug:
            traceback.print_exc()
        click.echo(told, err=True)
        if _stops:
            _end_interrupted(name)
        sys.exit(int(getattr(error, "exit_code", 1)))


@contextmanager
def _interrupts_noted() -> Iterator[None]:
    """Note inside the block whether somebody has pressed Ctrl-C."""
    _stops.clear()
    # A shell lets what it runs in the background ignore Ctrl-C, and other threads may not ask for signals.
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_heard or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _end_interrupted(name: str, advice: str = "") -> NoReturn:
    """Say that the command was interrupted, and exit."""
    if _stops:
        # Whoever presses Ctrl-C again does not want to wait for what Python does last.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    advice = advice or "run the same command again"
    click.echo(f"{name}: interrupted; whatever was stored is whole, {advice}", err=True)
    sys.exit(INTERRUPTED)


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


def _one_line(error: click.ClickException) -> str:
    """Return click's message as our own messages are written, with where the options are explained."""
    message = " ".join(error.format_message().split()).rstrip(".")
    if message[1:2].islower():
        message = message[0].lower() + message[1:]
    context = error.ctx if isinstance(error, click.UsageError) else None
    return message if context is None else f"{message} (see '{context.command_path} --help')"
