"""The command ``distill``."""

from __future__ import annotations

import os
import time
from collections import UserDict
from functools import cache
from typing import Any

import click

from distill.errors import DistillError
from embedcache import EmbedCacheError, __version__
from embedcache.cli.guard import guarded, refuse_repeats
from embedcache.lazy import load

_SECONDS_TO_TELL = 10.0

COMMANDS = {
    "run": ("train:run_command", "Distil a student from the vectors of a cache."),
    "finetune": ("train:finetune_command", "Fine-tune a student on triples, pairs, sentences or labels."),
    "eval": ("evaluate:evaluate_command", "Evaluate models, beside their teacher."),
    "compare": ("compare:compare_command", "Compare two models on the same items."),
    "report": ("report:report_command", "Rank runs beside their teachers."),
    "sweep": ("sweep:sweep_command", "Train many students on one cache and rank them."),
    "pipeline": ("pipeline:pipeline_command", "Build, distil, fine-tune, evaluate and export from one file."),
    "kb": ("kb:kb_command", "Make and tune the knowledge base of a student."),
    "predict": ("predict:predict_command", "Predict the labels of texts."),
    "export": ("ship:export_command", "Export a model to ONNX or OpenVINO."),
    "data": ("data:data_command", "Fetch evaluation data, and take training pairs from it."),
    "list": ("listing:list_command", "List losses, recipes, suites or students."),
}
"""Name -> place below ``distill.cli``, and its line in ``--help``."""


class _Commands(UserDict[str, Any]):
    """Commands by name, imported when looked up."""

    def __getitem__(self, name: str) -> Any:
        return _command(self.data[name][0])


@cache
def _command(place: str) -> click.Command:
    """Return the command at a place below ``distill.cli``."""
    return refuse_repeats(load(f"distill.cli.{place}"))


class _Group(click.Group):
    """Group whose ``--help`` imports none of its commands."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **{**settings, "commands": _Commands(COMMANDS)})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the work."""
        return list(COMMANDS)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands with the first line of their help."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="distill")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def cli() -> None:
    """Distil small sentence encoders from cached teacher vectors."""


def main() -> None:
    """Run the command line and exit."""
    guarded(cli, "distill", (DistillError, EmbedCacheError), _let_the_first_process_tell)


def _let_the_first_process_tell() -> None:
    """Wait in all but the first of several processes, which most often meet the same error.

    A launcher ends the others once the first has printed it and ended.
    """
    if int(os.environ.get("RANK") or 0):
        time.sleep(_SECONDS_TO_TELL)
