"""``distill teach``."""

from __future__ import annotations

from typing import Any

import click

from distill.classification.config import TeachConfig
from distill.cli.options import ConfigCommand, Typed, explained, options_of, refuse_with_resume


@click.command("teach", cls=ConfigCommand)
@options_of(TeachConfig, recipes=False)
def teach_command(dump_config: bool, as_json: bool, **parameters: Any) -> None:
    """Teach MODEL to tell labelled texts, or pairs of texts, apart: a classifier.

    MODEL is an alias, a hub id, a folder or a run's folder (its best student is meant). What comes out is an
    ordinary model folder with a linear classifier beside it, to predict with or to distil from.
    """
    from distill.cli.progress import print_teach, report

    typed = Typed(TeachConfig, parameters)
    if typed.resumed is not None:
        refuse_with_resume("training.device", "training.threads")
        from distill.classification.teach import resume_teach

        folder, changes = typed.resumed, typed.machine()
        report(lambda tell: resume_teach(folder, **changes, on_progress=tell), print_teach, as_json)
        return
    sources = typed.gather()
    with explained(sources):
        config = sources.make(TeachConfig)
        if dump_config:
            click.echo(config.to_yaml(), nl=False)
            return
        from distill.classification.teach import teach_config

        report(lambda tell: teach_config(config, tell), print_teach, as_json)
