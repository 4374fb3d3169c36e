"""``distill run`` and ``distill finetune``."""

from __future__ import annotations

from typing import Any

import click

from distill.cli.options import ConfigCommand, Typed, explained, options_of, refuse_with_resume
from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig


@click.command("run", cls=ConfigCommand)
@options_of(RunConfig)
def run_command(dump_config: bool, as_json: bool, **parameters: Any) -> None:
    """Distil a student from the vectors of a cache.

    The teacher is not in memory (a student made from it takes its weights once, at the start). Of several
    teachers every row needs a vector of each: scaled to length one and weighted, they are laid side by side.
    """
    from distill.cli.progress import print_run, report

    typed = Typed(RunConfig, parameters)
    if typed.resumed is not None:
        refuse_with_resume("cache", "training.device", "training.threads")
        from distill.training.run import resume

        folder, changes = typed.resumed, typed.machine()
        report(lambda on_progress: resume(folder, **changes, on_progress=on_progress), print_run, as_json)
        return
    sources = typed.gather("run")
    with explained(sources):
        config = sources.make(RunConfig)
        if dump_config:
            click.echo(config.to_yaml(), nl=False)
            return
        from distill.training.place import refuse_missing_cache

        # Before torch is imported, which takes seconds.
        refuse_missing_cache(config.cache)
        from distill.training.run import run_config

        recipe = typed.recipe
        report(lambda on_progress: run_config(config, on_progress, recipe=recipe), print_run, as_json)


@click.command("finetune", cls=ConfigCommand)
@options_of(FinetuneConfig)
def finetune_command(dump_config: bool, as_json: bool, **parameters: Any) -> None:
    """Fine-tune START on triples: the second stage after 'distill run', or supervised SimCSE.

    START is a run's folder (its best student is meant), another folder, a hub id or an alias. With
    --sentences every text is its own positive under another dropout: unsupervised SimCSE.
    """
    from distill.cli.progress import print_finetune, report

    typed = Typed(FinetuneConfig, parameters)
    if typed.resumed is not None:
        refuse_with_resume("training.device", "training.threads")
        from distill.training.finetune import resume_finetune

        folder, changes = typed.resumed, typed.machine()
        report(lambda tell: resume_finetune(folder, **changes, on_progress=tell), print_finetune, as_json)
        return
    sources = typed.gather("finetune")
    with explained(sources):
        config = sources.make(FinetuneConfig)
        if dump_config:
            click.echo(config.to_yaml(), nl=False)
            return
        from distill.training.finetune import finetune_config

        recipe = typed.recipe
        report(lambda tell: finetune_config(config, tell, recipe=recipe), print_finetune, as_json)
