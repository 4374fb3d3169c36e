"""``distill run``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


@click.command("run")
@click.option("--cache", metavar="DIR", help="The cache's folder.")
@click.option("--corpus", metavar="NAME", help="Corpus in the cache.  [default: the only one]")
@click.option(
    "--teacher",
    metavar="NAME",
    multiple=True,
    help="Teacher in the cache; repeat it to learn from several.  [default: the only one]",
)
@click.option(
    "--teacher-weight",
    "teacher_weights",
    metavar="W",
    type=float,
    multiple=True,
    help="What each of several teachers counts for, in their order.  [default: all the same]",
)
@click.option(
    "--target-dim",
    type=int,
    help="Reduce the teachers' vectors to this width by PCA.  [default: as wide as they are together]",
)
@click.option(
    "--teacher-model",
    metavar="SPEC",
    help="Where to load the (first) teacher from, for layers: students.  [default: as it was built]",
)
@click.option(
    "--student",
    metavar="SPEC",
    help="Hub id, folder, or layers:K, layers:first:K, layers:0,2,5.  [default: layers:3]",
)
@click.option("--loss", metavar="NAME", help="mse, cosine or ckd.  [default: mse]")
@click.option(
    "--head", metavar="KIND", help="Linear head: auto (where widths differ), linear or none.  [default: auto]"
)
@click.option(
    "--max-length", type=int, help="Tokens after which the student cuts a text.  [default: as the teacher]"
)
@click.option("--epochs", type=int, help="[default: 3, more for corpora under 200 000 rows]")
@click.option("--batch-size", type=int, help="Rows a step.  [default: 128]")
@click.option("--lr", type=float, help="Peak learning rate.  [default: 7e-4]")
@click.option("--schedule", metavar="KIND", help="cosine, linear or constant.  [default: cosine]")
@click.option("--warmup", type=float, help="Below 1: share of all steps; else steps.  [default: 0.06]")
@click.option("--weight-decay", type=float, help="[default: 0.01]")
@click.option(
    "--where",
    metavar="SQL",
    help="Train on the rows that satisfy this predicate, as in \"label = 'news' and characters < 200\".",
)
@click.option("--limit", type=int, help="Train on the first so many distinct rows.")
@click.option("--mixed-precision", metavar="KIND", help="auto, no, bf16 or fp16.  [default: auto]")
@click.option("--device", help="auto, cpu, cuda ...  [default: auto]")
@click.option("--threads", type=int, help="CPU threads.  [default: all cores]")
@click.option("--tau", type=float, help="ckd: a fixed temperature.  [default: learned]")
@click.option("--bank", type=int, help="ckd: teacher vectors kept as negatives.  [default: 65536]")
@click.option(
    "--dev",
    metavar="FILE",
    help="Development pairs (TSV) to choose the best checkpoint by.  [default: held-out rows]",
)
@click.option("--held-out", type=int, help="Rows kept out of training.  [default: 2 %, at most 1000]")
@click.option("--eval-every", type=int, help="Steps between evaluations.  [default: 20 a run]")
@click.option("--patience", type=int, help="Stop after so many evaluations without a new best.")
@click.option("--tensorboard", is_flag=True, default=None, help="Also write TensorBoard files.")
@click.option("--seed", type=int, help="[default: 0]")
@click.option("--out", metavar="DIR", help="The run's folder.  [default: runs/CORPUS-STUDENT-LOSS]")
@click.option("--overwrite", is_flag=True, default=None, help="Replace a run that is in the folder already.")
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
@click.option("--dump-config", is_flag=True, help="Print the configuration as YAML and stop.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def run_command(
    config_file: Path | None, assignments: tuple[str, ...], dump_config: bool, as_json: bool, **flags: Any
) -> None:
    """Distil a student from the vectors of a cache.

    The teacher is not in memory (a layers: student copies its weights from it once, at the start). Of several
    teachers every row needs a vector of each: scaled to length one and weighted, they are laid side by side.
    """
    from distill.config import SHORT_KEYS, load_config

    flags["teacher"] = flags["teacher"][0] if len(flags["teacher"]) == 1 else list(flags["teacher"]) or None
    flags["teacher_weights"] = list(flags["teacher_weights"]) or None
    config = load_config(
        config_file, assignments, {SHORT_KEYS.get(key, key): value for key, value in flags.items()}
    )
    if dump_config:
        click.echo(config.to_yaml(), nl=False)
        return
    import json
    from dataclasses import asdict

    from distill.cli.progress import print_run, train_progress
    from distill.training.run import run_config

    with train_progress() as on_progress:
        run = run_config(config, on_progress)
    if as_json:
        facts = {
            "run": str(run.folder),
            "best": str(run.best),
            "parameters": run.parameters,
            "rows": run.rows,
            "selected": run.selected,
            "teachers": list(run.teachers),
            **asdict(run.result),
        }
        click.echo(json.dumps(facts, indent=2))
    else:
        print_run(run)
