"""``distill run`` and ``distill finetune``."""

from __future__ import annotations

from typing import Any, Literal

import click

from distill.cli.options import ConfigCommand, Typed, options_of
from distill.config.finetune import FinetuneConfig
from distill.config.models import RunConfig
from distill.config.sources import make_config, naming_settings


@click.command("run", cls=ConfigCommand)
@options_of(RunConfig)
def run_command(dump_config: bool, as_json: bool, **parameters: Any) -> None:
    """Distil a student from the vectors of a cache.

    The teacher is not in memory (a student made from it takes its weights once, at the start). Of several
    teachers every row needs a vector of each: scaled to length one and weighted, they are laid side by side.
    """
    _train(RunConfig, "run", dump_config, as_json, parameters)


@click.command("finetune", cls=ConfigCommand)
@options_of(FinetuneConfig)
def finetune_command(dump_config: bool, as_json: bool, **parameters: Any) -> None:
    """Fine-tune START on triples, pairs or sentences, or on labels: a classifier.

    START is a run's folder (its best student is meant), another folder, a hub id or an alias. Triples are the
    second stage after 'distill run', or supervised SimCSE; sentences are unsupervised SimCSE. With --labels
    the result is an ordinary model folder with a linear classifier, to predict with or to distil from.
    """
    _train(FinetuneConfig, "finetune", dump_config, as_json, parameters)


def _train(
    model: type[RunConfig] | type[FinetuneConfig],
    kind: Literal["run", "finetune"],
    dump_config: bool,
    as_json: bool,
    parameters: dict[str, Any],
) -> None:
    from distill.cli.progress import train_and_print

    typed = Typed(model, parameters)
    if typed.resumed is not None:
        folder, changes = typed.resumed, typed.machine()
        from distill.training.train import resume

        train_and_print(lambda on_progress: resume(folder, **changes, on_progress=on_progress), as_json)
        return
    with naming_settings(model):
        config = make_config(model, typed.gather(kind))
        if dump_config:
            click.echo(config.to_yaml(), nl=False)
            return
        if isinstance(config, RunConfig):
            from distill.training.remote import refuse_missing_cache

            refuse_missing_cache(config.cache)
        from distill.training.train import train

        recipe = typed.recipe
        train_and_print(lambda on_progress: train(config, on_progress, recipe=recipe), as_json)
