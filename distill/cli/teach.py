"""``distill teach``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from distill.cli.options import (
    config_options,
    output_options,
    precision_options,
    progress_options,
    schedule_options,
)
from distill.cli.resume import MACHINE, refuse_settings, resume_option
from distill.cli.typed import naming_options


@click.command("teach")
@click.argument("start", metavar="MODEL", required=False)
@click.option("--train", metavar="FILE", help="Labelled texts: TSV, CSV, JSONL, Parquet or Arrow.")
@click.option("--text", metavar="COLUMN", help="Column of the text.  [default: the one that is plainly it]")
@click.option("--text2", metavar="COLUMN", help="Column of the second text, for pairs.")
@click.option("--label", metavar="COLUMN", help="Column of the label.  [default: label]")
@click.option(
    "--rows",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Train on such rows only, as in split=train; repeatable, all have to hold.",
)
@click.option("--format", metavar="KIND", help="Format of the file.  [default: by its ending]")
@click.option(
    "--dev",
    metavar="FILE",
    help="Development rows to choose the best checkpoint by, with the columns of --train.  "
    "[default: --train, with --dev-rows]",
)
@click.option(
    "--dev-rows",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="Only such rows of --dev, as in split=dev; repeatable, all have to hold.",
)
@click.option(
    "--dev-share",
    type=float,
    help="Share of the texts to hold out and choose by, where there are no development rows.  [default: 0.1]",
)
@click.option(
    "--layers",
    metavar="WHICH",
    help="Keep these layers of MODEL: K or last:K, first:K, every:K, or 0,2,5.  [default: all]",
)
@click.option("--pooling", metavar="KIND", help="mean, cls, pooler or last.  [default: as MODEL, else mean]")
@click.option("--max-length", type=int, help="Tokens after which a text is cut.  [default: as MODEL]")
@click.option("--dropout", type=float, help="Dropout while training.  [default: 0.1]")
@click.option("--epochs", type=int, help="[default: 3, or as many as --max-steps take]")
@click.option("--batch-size", type=int, help="Rows a step.  [default: 32]")
@click.option("--lr", type=float, help="Peak learning rate.  [default: 2e-5]")
@schedule_options
@click.option("--limit", type=int, help="Take the first so many rows of the file.")
@precision_options
@click.option("--eval-every", type=int, help="Steps between evaluations.  [default: ten a run]")
@progress_options
@click.option("--out", metavar="DIR", help="The run's folder.  [default: runs/MODEL-FILE-teach]")
@config_options
@resume_option(*MACHINE)
@output_options
def teach_command(
    start: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    resumed: Path | None,
    dump_config: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Teach MODEL to tell labelled texts, or pairs of texts, apart: a classifier.

    MODEL is an alias, a hub id, a folder or a run's folder (its best student is meant). What comes out is an
    ordinary model folder with a linear classifier beside it, to predict with or to distil from.
    """
    from distill.classification.config import TEACH_SHORT_KEYS, TeachConfig
    from distill.cli.progress import print_teach, report
    from distill.config_origin import origins, telling_origin
    from distill.config_sources import load_config

    if resumed is not None:
        refuse_settings(*MACHINE)
        from distill.classification.teach import resume_teach

        changed = {name: flags[name] for name in MACHINE}
        report(
            lambda on_progress: resume_teach(resumed, **changed, on_progress=on_progress),
            print_teach,
            as_json,
        )
        return
    flags |= {
        "start": start,
        "rows": list(flags["rows"]) or None,
        "dev_rows": list(flags["dev_rows"]) or None,
    }
    typed = {TEACH_SHORT_KEYS.get(key, key): value for key, value in flags.items()}
    with naming_options(TEACH_SHORT_KEYS):
        config = load_config(config_file, assignments, typed, TeachConfig)
        if dump_config:
            click.echo(config.to_yaml(), nl=False)
            return
        from distill.classification.teach import teach_config

        with telling_origin(origins(None, config_file, assignments, typed)):
            report(lambda on_progress: teach_config(config, on_progress), print_teach, as_json)
