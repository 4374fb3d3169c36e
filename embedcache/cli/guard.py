"""End of a command: one line for an error, the right exit code, a traceback only on request."""

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

# A list, because appending takes no lock: a second signal may arrive inside the handler of the first.
_signals: list[int] = []


def interrupt(number: int, frame: object) -> None:
    """Handle Ctrl-C: note it and raise :class:`KeyboardInterrupt`."""
    _signals.append(number)
    raise KeyboardInterrupt


def guarded(
    group: click.Group,
    name: str,
    domain_errors: tuple[type[Exception], ...],
    before_printing: Callable[[], None] = lambda: None,
) -> None:
    """Run ``group`` as the process's command line and exit.

    Exit codes: 0 for success, 2 for the user's mistakes, 1 for failures, 130 after Ctrl-C, whichever
    exception it became on the way.

    Args:
        group: the command line.
        name: the command's name, which begins error lines.
        domain_errors: errors raised on purpose; each has an ``exit_code``.
        before_printing: called before an error is printed.
    """
    debug = "--debug" in sys.argv[1:]
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    command = " ".join([name, *_subcommands(group, arguments)])
    try:
        with _ctrl_c_noted():
            code = group.main(args=arguments, prog_name=name, standalone_mode=False)
        if isinstance(code, int) and code:
            sys.exit(code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        before_printing()
        click.echo(f"{command}: {_one_line(error)}", err=True)
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as stop:
        # click turns Ctrl-C into an Abort without a message, and ends the line with the terminal's ^C.
        _exit_interrupted(name, str(stop.__cause__ or stop))
    except BrokenPipeError:
        # The reader of our output is gone; Python must not flush to it at exit either.
        sys.stdout = None
        sys.exit(1)
    except Exception as error:
        message = _message(error, domain_errors)
        if message is None and not _signals:
            raise
        if not _signals:
            before_printing()
        if debug:
            traceback.print_exc()
        # After Ctrl-C the terminal's ^C stands on the line.
        start = "\n" if _signals else ""
        click.echo(start + (f"{command}: {message}" if message else ""), err=True, nl=bool(message or start))
        if _signals:
            _exit_interrupted(name)
        sys.exit(int(getattr(error, "exit_code", 1)))


def _message(error: Exception, domain_errors: tuple[type[Exception], ...]) -> str | None:
    """Return an error as one line; None for a programming error."""
    if isinstance(error, domain_errors):
        return " ".join(str(error).split())
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}; --debug shows where"
    return None


@contextmanager
def _ctrl_c_noted() -> Iterator[None]:
    """Note Ctrl-C inside the block, unless the process ignores it or this is not its main thread."""
    _signals.clear()
    is_heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not is_heard or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _exit_interrupted(name: str, advice: str = "") -> NoReturn:
    if _signals:
        # A second Ctrl-C ends the process at once.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    advice = advice or "run the same command again"
    click.echo(f"{name}: interrupted; whatever was stored is whole, {advice}", err=True)
    sys.exit(INTERRUPTED)


def _subcommands(group: click.Group, arguments: Sequence[str]) -> list[str]:
    """Return the names of the subcommands in ``arguments``; a group's own options take no values."""
    found: list[str] = []
    command: click.Command | None = group
    for word in (argument for argument in arguments if not argument.startswith("-")):
        command = command.commands.get(word) if isinstance(command, click.Group) else None
        if command is None:
            break
        found.append(word)
    return found


def _one_line(error: click.ClickException) -> str:
    """Return click's message in our style, and where the options are explained."""
    message = " ".join(error.format_message().split()).rstrip(".")
    if message[1:2].islower():
        message = message[0].lower() + message[1:]
    context = error.ctx if isinstance(error, click.UsageError) else None
    return message if context is None else f"{message} (see '{context.command_path} --help')"
