"""``distill finetune``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from distill.cli.options import (
    output_options,
    precision_options,
    progress_options,
    schedule_options,
    source_options,
)
from distill.cli.resume import MACHINE, refuse_settings, resume_option
from distill.cli.typed import naming_options


@click.command("finetune")
@click.argument("start", metavar="START", required=False)
@click.option(
    "--triples",
    metavar="FILE",
    help="Anchors, positives and hard negatives: TSV, CSV, JSONL, Parquet or Arrow; two columns are pairs.",
)
@click.option(
    "--sentences", metavar="FILE", help="Instead: texts, each its own positive under another dropout."
)
@click.option(
    "--columns",
    metavar="A,P,N",
    help="Columns of the file.  [default: anchor,positive,negative or premise,entailment,contradiction]",
)
@click.option("--format", metavar="KIND", help="Format of the file.  [default: by its ending]")
@click.option("--pooling", metavar="KIND", help="mean, cls, pooler or last.  [default: as START, else mean]")
@click.option(
    "--head", metavar="KIND", help="Head to add: none, linear, tanh (a linear one and tanh).  [default: none]"
)
@click.option(
    "--drop-head", is_flag=True, default=None, help="Score and save the student without the head added."
)
@click.option(
    "--max-length",
    type=int,
    help="Tokens after which a text is cut while training; the student saved keeps START's length.  "
    "[default: as START]",
)
@click.option("--dropout", type=float, help="Dropout while training.  [default: 0.1]")
@click.option("--tau", type=float, help="Temperature.  [default: 0.05]")
@click.option("--epochs", type=int, help="[default: 5, or as many as --max-steps take]")
@click.option("--batch-size", type=int, help="Rows a step.  [default: 128]")
@click.option("--lr", type=float, help="Peak learning rate.  [default: 1e-5]")
@schedule_options
@click.option("--limit", type=int, help="Take the first so many rows of the file.")
@precision_options
@click.option(
    "--dev",
    metavar="FILE",
    help="Development pairs (TSV) to choose the best checkpoint by.  [default: held-out triples]",
)
@click.option("--held-out", type=int, help="Anchors kept out of training.  [default: 2 %, at most 1000]")
@click.option("--eval-every", type=int, help="Steps between evaluations.  [default: 125, ten a run at least]")
@progress_options
@click.option("--out", metavar="DIR", help="The run's folder.  [default: runs/START-FILE-finetune]")
@source_options
@resume_option(*MACHINE)
@output_options
def finetune_command(
    start: str | None,
    recipe: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    resumed: Path | None,
    dump_config: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Fine-tune START on triples: the second stage after 'distill run', or supervised SimCSE.

    START is a run's folder (its best student is meant), another folder, a hub id or an alias. With
    --sentences every text is its own positive under another dropout: unsupervised SimCSE.
    """
    from distill.cli.progress import print_finetune, report
    from distill.config_origin import origins, telling_origin
    from distill.config_sources import load_config
    from distill.finetune_config import FINETUNE_SHORT_KEYS, FinetuneConfig
    from distill.recipe import find_recipe

    flags["start"] = start
    if resumed is not None:
        refuse_settings(*MACHINE)
        from distill.training.finetune import resume_finetune

        changed = {name: flags[name] for name in MACHINE}
        report(
            lambda on_progress: resume_finetune(resumed, **changed, on_progress=on_progress),
            print_finetune,
            as_json,
        )
        return
    if flags["columns"] is not None:
        flags["columns"] = [name.strip() for name in flags["columns"].split(",")]
    flags = {FINETUNE_SHORT_KEYS.get(key, key): value for key, value in flags.items()}
    settings = find_recipe(recipe, "finetune").config if recipe else None
    with naming_options(FINETUNE_SHORT_KEYS):
        config = load_config(config_file, assignments, flags, FinetuneConfig, recipe=settings)
        if dump_config:
            click.echo(config.to_yaml(), nl=False)
            return
        from distill.training.finetune import finetune_config

        set_by = origins((recipe, settings) if recipe and settings else None, config_file, assignments, flags)
        with telling_origin(set_by):
            report(
                lambda on_progress: finetune_config(config, on_progress, recipe=recipe),
                print_finetune,
                as_json,
            )
