"""End of a command: one line for an error, the right exit code, a traceback only on request."""

from __future__ import annotations

import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable

import click

from embedcache.cli.tables import printable
from embedcache.errors import naming_options

INTERRUPTED = 130

# A list, because appending takes no lock.
_signals: list[int] = []


def interrupt(number: int, frame: object) -> None:
    """Handle Ctrl-C: note it and raise ``KeyboardInterrupt``."""
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
    with naming_options():
        _guarded(group, name, domain_errors, before_printing)


def _guarded(
    group: click.Group,
    name: str,
    domain_errors: tuple[type[Exception], ...],
    before_printing: Callable[[], None],
) -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    _signals.clear()
    # Processes in the background ignore Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        sys.exit(group.main(args=arguments, prog_name=name, standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output is gone; Python must not flush to it at exit either.
        sys.stdout = None
        sys.exit(1)
    except (Exception, KeyboardInterrupt) as error:
        message, code = _message(error, domain_errors), getattr(error, "exit_code", 1)
        # click turns a KeyboardInterrupt into an Abort.
        stop = error.__cause__ if isinstance(error, click.Abort) else error
        if _signals or isinstance(error, (click.Abort, KeyboardInterrupt)):
            # A second Ctrl-C ends the process at once.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            advice = (isinstance(stop, KeyboardInterrupt) and str(stop)) or "run the same command again"
            # The terminal's ^C stands on the line; click has ended it for an Abort.
            line = "" if isinstance(error, click.Abort) else "\n"
            message = f"{line}{name}: interrupted; everything stored is intact, {advice}"
            code = INTERRUPTED
        elif message is None:
            raise
        else:
            before_printing()
            message = f"{_command(group, name, arguments)}: {message}"
        if len(arguments) < len(sys.argv) - 1:
            traceback.print_exc()
        click.echo(message, err=True)
        sys.exit(code)


def refuse_repeats(command: click.Command) -> click.Command:
    """Make a command, and those below it, refuse an option that takes one value and is given twice.

    click itself takes the last value.
    """
    parse = command.parse_args

    def parse_once(context: click.Context, arguments: list[str]) -> list[str]:
        _, _, order = command.make_parser(context).parse_args(list(arguments))
        for option, times in Counter(order).items():
            if times > 1 and isinstance(option, click.Option) and not (option.multiple or option.is_flag):
                raise click.UsageError(f"{option.opts[0]} is given {times} times: give it once", context)
        return parse(context, arguments)

    setattr(command, "parse_args", parse_once)  # noqa: B010 - mypy has no other word for it
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        refuse_repeats(inner)
    return command


def _message(error: BaseException, domain_errors: tuple[type[Exception], ...]) -> str | None:
    """Return an error as one line; None for a programming error."""
    if isinstance(error, click.ClickException):
        message = " ".join(error.format_message().split()).rstrip(".")
        context = error.ctx if isinstance(error, click.UsageError) else None
        return message if context is None else f"{message} (see '{context.command_path} --help')"
    if isinstance(error, domain_errors):
        # It may quote text from a foreign file.
        return printable(" ".join(str(error).split()))
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        return f"{error.strerror or error}{where}; --debug shows where"
    return None


def _command(group: click.Group, name: str, arguments: list[str]) -> str:
    """Return the name of the subcommand in ``arguments``; a group's own options take no values."""
    command: click.Command = group
    for word in arguments:
        if isinstance(command, click.Group) and word in command.commands:
            command, name = command.commands[word], f"{name} {word}"
    return name
