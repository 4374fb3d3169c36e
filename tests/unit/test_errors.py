"""Errors name the option of the command line, or the argument of Python, whichever the caller has."""

from __future__ import annotations

import pytest

from distill.errors import ConfigError
from embedcache.errors import InputError, for_caller, naming_options

CASES = [
    ("no column; use --text-column with one of them", "no column; use text_column with one of them"),
    ("two teachers: --teacher a|b, --corpus NAME", "two teachers: teacher a|b, corpus=NAME"),
    ("replace it with --overwrite", "replace it with overwrite=True"),
    ("give another name (--teacher-name)", "give another name (TeacherOptions.name)"),
    ("give --cache-limit 20GB or more", "give cache_limit=20GB or more"),
    ("use --head=linear", "use head=linear"),
    ("run 'embedcache rm teacher NAME --cache DIR', or", "run 'embedcache rm teacher NAME --cache DIR', or"),
    ("a--b, x -- y, --", "a--b, x -- y, --"),
]


@pytest.mark.parametrize(("message", "python"), CASES)
def test_options_are_arguments_in_python_and_stay_on_the_command_line(message: str, python: str) -> None:
    for error in (InputError(message), ConfigError(message)):
        assert str(error) == for_caller(message) == python
        with naming_options():
            assert str(error) == message
        assert str(error) == python
