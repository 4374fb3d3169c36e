"""``distill run``."""

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
from distill.students.spec import student_forms

_WITH_RESUME = ("cache", *MACHINE)


@click.command("run")
@click.option("--cache", metavar="DIR", help="The cache's folder, or the name or URL of a remote.")
@click.option(
    "--corpus",
    metavar="NAME[@DIGEST]",
    help="Corpus in the cache; of a remote's several versions the one with this digest.  "
    "[default: the only one]",
)
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
    help="Where to load the (first) teacher from, for students made from it.  [default: as it was built]",
)
@click.option(
    "--student",
    metavar="SPEC",
    help=f"Short name (minilm-l3 ...), hub id, folder, or made from the teacher: {student_forms()}.  "
    "[default: layers:3]",
)
@click.option("--loss", metavar="NAME", help="The loss; 'distill losses' lists them.  [default: mse]")
@click.option(
    "--view",
    "views",
    metavar="NAME",
    multiple=True,
    help="View of a row to train on, the one that the teacher has encoded first; repeatable.  "
    "[default: original, and for losses of two views all others of the corpus]",
)
@click.option(
    "--head",
    metavar="KIND",
    help="Linear head: auto (where widths differ), linear, tanh (a linear one and tanh) or none.  "
    "[default: auto]",
)
@click.option(
    "--drop-head",
    is_flag=True,
    default=None,
    help="Score and save the student without the head it is trained with.",
)
@click.option(
    "--pooling", metavar="KIND", help="mean, cls, pooler or last, of a student folder.  [default: as it says]"
)
@click.option(
    "--max-length", type=int, help="Tokens after which the student cuts a text.  [default: as the teacher]"
)
@click.option("--dropout", type=float, help="Dropout while training.  [default: 0]")
@click.option(
    "--epochs",
    type=int,
    help="[default: 3, more for corpora under 200 000 rows; as many as --max-steps take]",
)
@click.option("--batch-size", type=int, help="Rows a step.  [default: 128, 64 for kd, rkd-kd, reaugkd]")
@click.option("--lr", type=float, help="Peak learning rate.  [default: 7e-4, 2e-5 for kd, rkd-kd, reaugkd]")
@schedule_options
@click.option(
    "--where",
    metavar="SQL",
    help="Train on the rows that satisfy this predicate, as in \"label = 'news' and characters < 200\".",
)
@click.option("--limit", type=int, help="Train on the first so many distinct rows.")
@precision_options
@click.option(
    "--variant", metavar="KIND", help="seed, congen: the queue as in the paper or code.  [default: paper]"
)
@click.option(
    "--tau",
    type=float,
    help="(Student's) temperature; kd, rkd-kd: of soft labels.  [default: by loss, learned for ckd]",
)
@click.option("--teacher-tau", type=float, help="seed, congen: the teacher's temperature.  [default: 0.05]")
@click.option(
    "--alpha",
    type=float,
    help="congen: what the first view counts for; simtde: what the token embeddings do; reaugkd: what "
    "relations do.  [default: 0.5, 1 for reaugkd]",
)
@click.option(
    "--soft",
    type=float,
    help="kd, rkd-kd, reaugkd: what soft labels count for, beside the corpus's labels.  "
    "[default: 0.9, 1 for reaugkd]",
)
@click.option(
    "--queue",
    type=int,
    help="Teacher vectors kept.  [default: 65536 for ckd, else 16384; at most half the training rows]",
)
@click.option("--distance", type=float, help="rkd, rkd-kd: weight of the distances.  [default: 1]")
@click.option("--angle", type=float, help="rkd, rkd-kd: weight of the angles.  [default: 2]")
@click.option("--over", metavar="WHAT", help="simtde: compare tokens or vocabulary.  [default: tokens]")
@click.option(
    "--embeddings",
    metavar="WHAT",
    help="simtde: of a token compare what the block or the word matrix gives.  [default: block]",
)
@click.option("--scale", metavar="KIND", help="simtde, lmx-kd: paper or relative errors.  [default: paper]")
@click.option(
    "--hidden",
    type=float,
    help="lmx-kd, simtde: what the layers count for, with --teacher online.  [default: 1 and 0]",
)
@click.option(
    "--dev",
    metavar="FILE",
    help="Development pairs (TSV), for a classifier labelled rows, to choose the best checkpoint by.  "
    "[default: held-out rows]",
)
@click.option(
    "--dev-rows",
    metavar="COLUMN=VALUE",
    multiple=True,
    help="kd, rkd-kd, reaugkd: only such rows of --dev, as in split=dev; repeatable, all have to hold.",
)
@click.option(
    "--dev-text",
    metavar="COLUMN",
    help="Column of the text in --dev of a classifier.  [default: as the corpus was built]",
)
@click.option(
    "--dev-text2",
    metavar="COLUMN",
    help="Column of the second text, for pairs.  [default: as the corpus was built, else text2]",
)
@click.option(
    "--dev-label",
    metavar="COLUMN",
    help="Column of the label.  [default: as the corpus was built, else label]",
)
@click.option("--held-out", type=int, help="Rows kept out of training.  [default: 2 %, at most 1000]")
@click.option("--eval-every", type=int, help="Steps between evaluations.  [default: 20 a run]")
@progress_options
@click.option(
    "--mirror",
    metavar="DIR",
    help="Of a remote: folder for what comes from it.  [default: one in the user's cache folder]",
)
@click.option(
    "--cache-limit",
    metavar="SIZE",
    help="Of a remote: keep at most SIZE of its shards at a time, say 20GB; rows come in windows.  "
    "[default: all]",
)
@click.option(
    "--require-signature",
    metavar="KEYFILE",
    help="Of a remote: train only on pushes signed by a public ed25519 key in this file.",
)
@click.option("--out", metavar="DIR", help="The run's folder.  [default: runs/CORPUS-STUDENT-LOSS]")
@source_options
@resume_option(*_WITH_RESUME)
@output_options
def run_command(
    recipe: str | None,
    config_file: Path | None,
    assignments: tuple[str, ...],
    resumed: Path | None,
    dump_config: bool,
    as_json: bool,
    **flags: Any,
) -> None:
    """Distil a student from the vectors of a cache.

    The teacher is not in memory (a student made from it takes its weights once, at the start). Of several
    teachers every row needs a vector of each: scaled to length one and weighted, they are laid side by side.
    """
    from distill.cli.progress import print_run, report
    from distill.config_origin import origins, telling_origin
    from distill.config_sources import SHORT_KEYS, load_config
    from distill.recipe import find_recipe
    from distill.training.place import refuse_missing_cache

    flags["teacher"] = flags["teacher"][0] if len(flags["teacher"]) == 1 else list(flags["teacher"]) or None
    flags["teacher_weights"] = list(flags["teacher_weights"]) or None
    flags["views"] = list(flags["views"]) or None
    flags["dev_rows"] = list(flags["dev_rows"]) or None
    if resumed is not None:
        refuse_settings(*_WITH_RESUME)
        from distill.training.run import resume

        changed = {name: flags[name] for name in _WITH_RESUME}
        report(lambda on_progress: resume(resumed, **changed, on_progress=on_progress), print_run, as_json)
        return
    typed = {SHORT_KEYS.get(key, key): value for key, value in flags.items()}
    settings = find_recipe(recipe, "run").config if recipe else None
    with naming_options(SHORT_KEYS):
        config = load_config(config_file, assignments, typed, recipe=settings)
        if dump_config:
            click.echo(config.to_yaml(), nl=False)
            return
        # Before torch is imported, which takes seconds.
        refuse_missing_cache(config.cache)
        from distill.training.run import run_config

        set_by = origins((recipe, settings) if recipe and settings else None, config_file, assignments, typed)
        with telling_origin(set_by):
            report(lambda on_progress: run_config(config, on_progress, recipe=recipe), print_run, as_json)
