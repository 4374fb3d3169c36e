"""Options that the commands which train share, so that a word means the same everywhere."""

from __future__ import annotations

from pathlib import Path

import click

from embedcache.cli.options import F, all_of

_SCHEDULE_OPTIONS = (
    click.option(
        "--max-steps",
        type=int,
        help="End after so many steps, over which the learning rate's schedule goes, or after --epochs where "
        "they are given and over sooner.  [default: all steps of the epochs]",
    ),
    click.option("--schedule", metavar="KIND", help="cosine, linear or constant.  [default: cosine]"),
    click.option("--warmup", type=float, help="Below 1: share of all steps; else steps.  [default: 0.06]"),
    click.option("--weight-decay", type=float, help="[default: 0.01]"),
)

_PRECISION_OPTIONS = (
    click.option("--mixed-precision", metavar="KIND", help="auto, no, bf16 or fp16.  [default: auto]"),
    click.option("--device", help="auto, cpu, cuda ...  [default: auto]"),
    click.option("--threads", type=int, help="CPU threads.  [default: all cores]"),
)

_PROGRESS_OPTIONS = (
    click.option("--patience", type=int, help="Stop after so many evaluations without a new best."),
    click.option("--patience-epochs", type=float, help="Stop once the best is so many epochs old."),
    click.option(
        "--checkpoint-every",
        type=int,
        help="Steps between checkpoints to resume from.  [default: at evaluations, a minute apart or more]",
    ),
    click.option("--tensorboard", is_flag=True, default=None, help="Also write TensorBoard files."),
    click.option("--seed", type=int, help="[default: 0]"),
)

_OVERWRITE = click.option(
    "--overwrite", is_flag=True, default=None, help="Replace a run that is in the folder already."
)

_RECIPE = click.option(
    "--recipe",
    metavar="NAME",
    help="Settings of a published experiment, which all others win over; 'distill recipes' lists them.",
)

_CONFIG_OPTIONS = (
    click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="A YAML configuration.",
    ),
    click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="A.B=V",
        help="Set any key of the configuration; repeatable.",
    ),
)

_OUTPUT_OPTIONS = (
    click.option("--dump-config", is_flag=True, help="Print the configuration as YAML and stop."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
)


def schedule_options(command: F) -> F:
    """Add the steps of a run, the learning rate over them, and the weight decay."""
    return all_of(*_SCHEDULE_OPTIONS)(command)


def precision_options(command: F) -> F:
    """Add what a run computes on, and how precisely."""
    return all_of(*_PRECISION_OPTIONS)(command)


def progress_options(command: F) -> F:
    """Add when a run stops early, what it writes on the way, and its seed."""
    return all_of(*_PROGRESS_OPTIONS)(command)


def source_options(command: F) -> F:
    """Add where the configuration comes from, and whether a run may be replaced."""
    return all_of(_OVERWRITE, _RECIPE, *_CONFIG_OPTIONS)(command)


def config_options(command: F) -> F:
    """Add the same but for recipes, for commands that there are none of."""
    return all_of(_OVERWRITE, *_CONFIG_OPTIONS)(command)


def output_options(command: F) -> F:
    """Add what is printed."""
    return all_of(*_OUTPUT_OPTIONS)(command)
