"""``embedcache push``, ``pull`` and ``sync``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import (
    all_of,
    cache_option,
    jobs_option,
    json_option,
    read_size,
    signature_option,
    skip_option,
)
from embedcache.cli.progress import interruptible
from embedcache.cli.share_show import (
    exit_if_bad,
    report,
    show_estimate,
    show_pull,
    show_pulled,
    show_push,
    show_sync,
    tell_estimate,
    warn,
)

if TYPE_CHECKING:
    from embedcache.check.live import Computing
    from embedcache.share import PullEstimate


_teachers = click.option(
    "--teacher", "teachers", multiple=True, metavar="NAME", help="This teacher.  [default: all]"
)
_corpora_there = click.option(
    "--corpus",
    "corpora",
    multiple=True,
    metavar="NAME[@DIGEST]",
    help="This corpus; of several versions the one whose digest, or manifest's, begins so.  [default: all]",
)
_no_text = click.option("--no-text", is_flag=True, help="Leave out corpora; push or pull vectors only.")
_WRITER = (
    click.option("--by", default="", metavar="NAME", help="Who pushes; kept on the remote, with the time."),
    click.option("--message", "-m", default="", help="What for; kept on the remote."),
    click.option(
        "--text-licence",
        default="",
        help="Licence of the texts, for the card. Where others have declared another one for some of them, "
        "name those it is for with --corpus.",
    ),
    click.option(
        "--alone",
        is_flag=True,
        help="Do not look for others who push: for a place that does not list what was just written. Make "
        "sure that nobody else pushes meanwhile.",
    ),
    click.option(
        "--new-remote",
        is_flag=True,
        help="Make a remote in an empty folder, though this cache knows one that was there.",
    ),
    click.option("--sign", metavar="KEYFILE", help="Sign with this private ed25519 key, OpenSSH's or PEM."),
)
_READER = (
    click.option(
        "--max-bytes", callback=read_size, metavar="SIZE", help="Refuse to fetch more than this, say 20GB."
    ),
    signature_option("Take only what this public ed25519 key has signed."),
    skip_option,
    click.option(
        "--no-sample-check",
        is_flag=True,
        help="Compare no sample with the live teacher, and keep vectors that earlier samples found bad.",
    ),
    click.option(
        "--teacher-model",
        metavar="FOLDER",
        help="Folder of the teacher's model on this machine. It encodes the sample of what arrives that is "
        "compared with the vectors.  [default: what the teacher was built from]",
    ),
)

_PART = (
    click.option("--rows", type=click.IntRange(1), help="Of the one --corpus the first so many rows."),
    click.option(
        "--where",
        metavar="CONDITION",
        help="Of the one --corpus the rows for which this holds, say \"label = 'news'\"; --rows counts them.",
    ),
    click.option(
        "--codec",
        type=click.Choice(["float16", "int8"]),
        help="Store vectors in this codec if that is smaller.",
    ),
)


@click.command("push")
@click.argument("remote")
@cache_option
@_teachers
@click.option("--corpus", "corpora", multiple=True, metavar="NAME", help="This corpus.  [default: all]")
@_no_text
@all_of(*_WRITER)
@jobs_option
@json_option
def push_command(
    remote: str, cache: str, teachers: tuple[str, ...], corpora: tuple[str, ...], no_text: bool, **rest: Any
) -> None:
    """Send what the cache has and REMOTE, a name or a URL, lacks.

    Any number of people may push at once; nothing is overwritten, and nothing is sent twice. Interrupted, the
    same command goes on.
    """
    from embedcache.share import PushChoice, push

    as_json = rest.pop("as_json")
    choice = PushChoice(teachers, corpora, text=not no_text)
    with interruptible() as on_progress:
        done = push(cache, remote, choice, on_warning=warn, on_progress=on_progress, **rest)
    report(done, show_push, as_json)


@click.command("pull")
@click.argument("remote")
@cache_option
@_teachers
@_corpora_there
@_no_text
@click.option("--as", "alias", metavar="NAME", help="Call the one --corpus, or else the one --teacher, so.")
@all_of(*_PART)
@all_of(*_READER)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only say what would be fetched. Manifests and descriptions are read, nothing is transferred or "
    "compared: --jobs and --teacher-model change nothing.",
)
@jobs_option
@json_option
def pull_command(
    remote: str,
    cache: str,
    no_text: bool,
    no_sample_check: bool,
    teacher_model: str | None,
    dry_run: bool,
    jobs: int,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Fetch what REMOTE, a name or a URL, has and the cache lacks.

    Everything is checked on arrival, and nothing in the cache is overwritten. Interrupted, the same command
    goes on. Exits with 1 if a sample shows vectors of another teacher, in this pull or in what is still here
    of an earlier one.

    With --rows or --where a part of one --corpus becomes a corpus of its own, and of the teachers only the
    vectors of its texts come.
    """
    from embedcache.share import PullChoice, preview_pull, pull

    choice = PullChoice(text=not no_text, **chosen)
    computing = _computing(teacher_model, no_sample_check)
    told: list[str] = []

    def on_estimate(estimate: PullEstimate) -> None:
        tell_estimate(estimate)
        told.extend(estimate.told)

    with interruptible() as on_progress:
        if dry_run:
            estimate = preview_pull(cache, remote, choice, on_progress=on_progress)
        else:
            done = pull(
                cache,
                remote,
                choice,
                sample_check=not no_sample_check,
                computing=computing,
                jobs=jobs,
                on_estimate=on_estimate,
                on_progress=on_progress,
            )
    if dry_run:
        report(estimate, show_estimate, as_json)
        return
    report(done, partial(show_pull, told=told), as_json)
    exit_if_bad(done.samples)


@click.command("sync")
@click.argument("remote")
@cache_option
@_teachers
@_corpora_there
@_no_text
@all_of(*_WRITER, *_READER)
@jobs_option
@json_option
def sync_command(
    remote: str,
    cache: str,
    teachers: tuple[str, ...],
    corpora: tuple[str, ...],
    no_text: bool,
    max_bytes: int | None,
    require_signature: str | None,
    skip_manifests: tuple[str, ...],
    no_sample_check: bool,
    teacher_model: str | None,
    as_json: bool,
    **rest: Any,
) -> None:
    """Pull what the cache lacks, then push what REMOTE, a name or a URL, lacks.

    --teacher and --corpus choose for both. They take names that only one of the two sides knows.
    """
    from embedcache.errors import EmbedCacheError
    from embedcache.share import PullChoice, PullResult, SyncResult, sync

    choice = PullChoice(
        teachers,
        corpora,
        text=not no_text,
        max_bytes=max_bytes,
        require_signature=require_signature,
        skip_manifests=skip_manifests,
    )
    computing = _computing(teacher_model, no_sample_check)
    pulled: list[PullResult] = []
    told: list[str] = []

    def on_estimate(estimate: PullEstimate) -> None:
        tell_estimate(estimate)
        told.extend(estimate.told)

    try:
        with interruptible() as on_progress:
            done = sync(
                cache,
                remote,
                choice,
                sample_check=not no_sample_check,
                computing=computing,
                on_estimate=on_estimate,
                on_pulled=pulled.append,
                on_warning=warn,
                on_progress=on_progress,
                **rest,
            )
    except (EmbedCacheError, KeyboardInterrupt):
        if pulled:
            report(SyncResult(pulled[0], None), partial(show_pulled, told=told), as_json)
        raise
    report(done, partial(show_sync, told=told), as_json)
    if done.pulled is not None:
        exit_if_bad(done.pulled.samples)


def _computing(teacher_model: str | None, no_sample_check: bool) -> Computing:
    """Return how a sample is to be compared; refuse a model where none is."""
    from embedcache.check.live import Computing
    from embedcache.errors import InputError

    if teacher_model is not None and no_sample_check:
        raise InputError(
            "--teacher-model together with --no-sample-check: with the one a sample is compared with that "
            "model, with the other none is"
        )
    return Computing(teacher_model)
