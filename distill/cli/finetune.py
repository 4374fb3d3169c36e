"""``distill finetune``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from distill.cli.resume import MACHINE, refuse_settings

if TYPE_CHECKING:
    from distill.training.finetune import FinetuneRun
    from distill.training.tracking import OnProgress


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
@click.option("--epochs", type=int, help="[default: 5]")
@click.option("--batch-size", type=int, help="Rows a step.  [default: 128]")
@click.option("--lr", type=float, help="Peak learning rate.  [default: 1e-5]")
@click.option("--schedule", metavar="KIND", help="cosine, linear or constant.  [default: cosine]")
@click.option("--warmup", type=float, help="Below 1: share of all steps; else steps.  [default: 0.06]")
@click.option("--weight-decay", type=float, help="[default: 0.01]")
@click.option("--limit", type=int, help="Take the first so many rows of the file.")
@click.option("--mixed-precision", metavar="KIND", help="auto, no, bf16 or fp16.  [default: auto]")
@click.option("--device", help="auto, cpu, cuda ...  [default: auto]")
@click.option("--threads", type=int, help="CPU threads.  [default: all cores]")
@click.option(
    "--dev",
    metavar="FILE",
    help="Development pairs (TSV) to choose the best checkpoint by.  [default: held-out triples]",
)
@click.option("--held-out", type=int, help="Anchors kept out of training.  [default: 2 %, at most 1000]")
@click.option("--eval-every", type=int, help="Steps between evaluations.  [default: 125, ten a run at least]")
@click.option("--patience", type=int, help="Stop after so many evaluations without a new best.")
@click.option("--patience-epochs", type=float, help="Stop once the best is so many epochs old.")
@click.option(
    "--checkpoint-every",
    type=int,
    help="Steps between checkpoints to resume from.  [default: at evaluations, a minute apart or more]",
)
@click.option("--tensorboard", is_flag=True, default=None, help="Also write TensorBoard files.")
@click.option("--seed", type=int, help="[default: 0]")
@click.option("--out", metavar="DIR", help="The run's folder.  [default: runs/START-FILE-finetune]")
@click.option("--overwrite", is_flag=True, default=None, help="Replace a run that is in the folder already.")
@click.option(
    "--recipe",
    metavar="NAME",
    help="Settings of a published experiment, which all others win over; 'distill recipes' lists them.",
)
@click.option(
    "--config", "config_file", type=click.Path(path_type=Path), metavar="FILE", help="A YAML configuration."
)
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="A.B=V",
    help="Set any key of the configuration; repeatable.",
)
@click.option(
    "--resume",
    "resumed",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Go on with an interrupted run; its configuration is in its folder. --device and --threads may be "
    "given anew.",
)
@click.option("--dump-config", is_flag=True, help="Print the configuration as YAML and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
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
    from distill.config_sources import load_config
    from distill.finetune_config import FINETUNE_SHORT_KEYS, FinetuneConfig
    from distill.recipe import find_recipe

    flags["start"] = start
    if resumed is not None:
        refuse_settings(*MACHINE)
        from distill.training.finetune import resume_finetune

        changed = {name: flags[name] for name in MACHINE}
        _report(lambda on_progress: resume_finetune(resumed, **changed, on_progress=on_progress), as_json)
        return
    if flags["columns"] is not None:
        flags["columns"] = [name.strip() for name in flags["columns"].split(",")]
    flags = {FINETUNE_SHORT_KEYS.get(key, key): value for key, value in flags.items()}
    settings = find_recipe(recipe, "finetune").config if recipe else None
    config = load_config(config_file, assignments, flags, FinetuneConfig, recipe=settings)
    if dump_config:
        click.echo(config.to_yaml(), nl=False)
        return
    from distill.training.finetune import finetune_config

    _report(lambda on_progress: finetune_config(config, on_progress), as_json)


def _report(train: Callable[[OnProgress], FinetuneRun], as_json: bool) -> None:
    import json
    from dataclasses import asdict

    from distill.cli.progress import train_progress
    from distill.training.processes import is_first_process

    if not is_first_process():
        train(lambda progress: None)
        return
    with train_progress() as on_progress:
        run = train(on_progress)
    if as_json:
        facts = {
            "run": str(run.folder),
            "best": str(run.best),
            "parameters": run.parameters,
            "rows": run.rows,
            "skipped": run.skipped,
            "in_dev": run.in_dev,
            "resumed": run.resumed,
            **asdict(run.result),
        }
        click.echo(json.dumps(facts, indent=2))
    else:
        _print(run)


def _print(run: FinetuneRun) -> None:
    from rich.console import Console
    from rich.table import Table

    result, config = run.result, run.config
    file = config.triples or config.sentences
    table = Table(
        title=f"{Path(config.start).name} fine-tuned on {Path(file or '').name}",
        show_header=False,
        title_justify="left",
    )
    table.add_column(style="bold")
    table.add_column()
    kind = "triples or pairs" if config.triples else "sentences"
    table.add_row("parameters", f"{run.parameters / 1e6:.2f} M")
    epochs = "1 epoch" if config.training.epochs == 1 else f"{config.training.epochs} epochs"
    table.add_row(
        "trained on", f"{run.rows:,} {kind}, {epochs}, batches of at most {config.training.batch_size}"
    )
    if run.skipped:
        table.add_row(
            "skipped", ", ".join(f"{count:,} {reason}" for reason, count in sorted(run.skipped.items()))
        )
    if run.in_dev is not None:
        table.add_row("in the dev file", f"{run.in_dev:,} of them hold a text of it")
    early = ", stopped early" if result.stopped_early else ""
    resumed = f", resumed from step {run.resumed:,}" if run.resumed else ""
    table.add_row("steps", f"{result.steps:,} of {result.total_steps:,}{early}{resumed}")
    table.add_row("loss", f"{result.final_loss:.6f}")
    if result.best_score is not None:
        by = "Spearman on development pairs" if config.evaluation.data else "% of held-out anchors right"
        table.add_row("best", f"{100 * result.best_score:.2f} {by}, at step {result.best_step:,}")
    table.add_row(
        "speed", f"{result.rows_per_second:,.0f} rows/s, {100 * result.waited:.2f} % of it waiting for data"
    )
    table.add_row("time", f"{result.seconds:.0f} s")
    table.add_row("student", str(run.best))
    console = Console()
    console.print(table)
    console.print(f'Use it:    SentenceTransformer("{run.best}")', highlight=False, soft_wrap=True)
    console.print(
        f"Check it:  distill eval {run.folder} --suite sts --data DIR", highlight=False, soft_wrap=True
    )
