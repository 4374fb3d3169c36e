"""The command ``distill``."""

from __future__ import annotations

import os
import time

import click

from distill.cli.compare import compare_command
from distill.cli.data import data_command
from distill.cli.evaluate import evaluate_command
from distill.cli.kb import kb_command
from distill.cli.listing import list_command
from distill.cli.pipeline import pipeline_command
from distill.cli.predict import predict_command
from distill.cli.report import report_command
from distill.cli.ship import export_command
from distill.cli.sweep import sweep_command
from distill.cli.teach import teach_command
from distill.cli.train import finetune_command, run_command
from distill.errors import DistillError
from embedcache import EmbedCacheError, __version__
from embedcache.cli.guard import guarded

_SECONDS_TO_TELL = 10.0


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="distill")
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
def cli() -> None:
    """Distil small sentence encoders from cached teacher vectors."""


cli.add_command(run_command)
cli.add_command(finetune_command)
cli.add_command(teach_command)
cli.add_command(kb_command)
cli.add_command(predict_command)
cli.add_command(pipeline_command)
cli.add_command(sweep_command)
cli.add_command(data_command)
cli.add_command(evaluate_command)
cli.add_command(compare_command)
cli.add_command(report_command)
cli.add_command(export_command)
cli.add_command(list_command)


def main() -> None:
    """Run the command line and exit."""
    guarded(cli, "distill", (DistillError, EmbedCacheError), _let_the_first_process_tell)


def _let_the_first_process_tell() -> None:
    """Wait a while in all but the first of several processes, which most often meet the same error.

    A launcher ends the others once the first has told and gone. Where the first goes on, this one tells.
    """
    if int(os.environ.get("RANK") or 0):
        time.sleep(_SECONDS_TO_TELL)
