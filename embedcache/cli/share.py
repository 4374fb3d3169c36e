"""``embedcache remote``, ``push``, ``pull`` and ``sync``."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import all_of, cache_option, json_option, read_size
from embedcache.cli.share_show import (
    exit_if_bad,
    report,
    show_estimate,
    show_pull,
    show_pulled,
    show_push,
    show_sync,
    tell_estimate,
)

if TYPE_CHECKING:
    from embedcache.check.progress import OnCheck
    from embedcache.share import PullEstimate


_jobs = click.option(
    "--jobs", type=click.IntRange(1, 64), default=8, show_default=True, help="Transfers at once."
)
_no_text = click.option("--no-text", is_flag=True, help="Leave corpora out: vectors alone, found by key.")
_skip = click.option(
    "--skip-manifest",
    "skip_manifests",
    multiple=True,
    metavar="DIGITS",
    help="Leave out the manifest whose name begins so, with what it alone lists.",
)
_WRITER = (
    click.option("--by", default="", metavar="NAME", help="Who pushes; kept on the remote, with the time."),
    click.option("--message", "-m", default="", help="What for; kept on the remote."),
    click.option("--text-licence", default="", help="Licence of the texts, for the card."),
    click.option(
        "--alone",
        is_flag=True,
        help="Nobody else pushes meanwhile: for a place that does not list what was just written.",
    ),
    click.option("--sign", metavar="KEYFILE", help="Sign with this private ed25519 key, OpenSSH's or PEM."),
)
_READER = (
    click.option("--max-bytes", callback=read_size, metavar="SIZE", help="Refuse to fetch more, say 20GB."),
    click.option(
        "--require-signature", metavar="KEYFILE", help="Take only what this public ed25519 key has signed."
    ),
    _skip,
    click.option(
        "--no-sample-check",
        is_flag=True,
        help="Compare no sample with the live teacher, and keep what earlier ones found bad.",
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
        help="Keep vectors so where they take more room as they are.",
    ),
)


@click.group("remote")
def remote_command() -> None:
    """Name remotes, and look at what they have."""


@remote_command.command("add")
@click.argument("name")
@click.argument("url")
def add_command(name: str, url: str) -> None:
    """Call the remote at URL NAME: a folder, s3://, gs://, sftp://, https:// or hf://."""
    from embedcache.share import add_remote

    click.echo(f"{name}: {add_remote(name, url)}")


@remote_command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the remotes that have a name."""
    import json

    from embedcache.share import list_remotes

    found = list_remotes()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for name, url in found.items():
        click.echo(f"{name}: {url}")
    if not found:
        click.echo("none; add one with 'embedcache remote add NAME URL'")


@remote_command.command("remove")
@click.argument("name")
def remove_command(name: str) -> None:
    """Forget the name of a remote; what lies there stays."""
    from embedcache.share import remove_remote

    remove_remote(name)
    click.echo(f"{name} is no remote any more; what lies there stays")


@remote_command.command("ls")
@click.argument("remote")
@json_option
def remote_ls_command(remote: str, as_json: bool) -> None:
    """List the teachers, corpora and pushes of REMOTE, a name or a URL.

    Exits with 1 if a manifest there cannot be read.
    """
    import json

    from embedcache.cli.tables import print_table, size
    from embedcache.share import list_remote

    found = list_remote(remote)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
        sys.exit(1 if found.refused else 0)
    print_table(
        ("teacher", "contract", "rows", "size", "model", "licence"),
        [
            (
                ", ".join(one.names),
                one.contract[:12],
                f"{one.rows:,}",
                size(one.bytes),
                one.model,
                one.licence,
            )
            for one in found.teachers
        ],
        "teachers",
    )
    print_table(
        ("corpus", "digest", "rows", "views", "licence"),
        [
            (one.name, one.digest[:12], f"{one.rows:,}", ", ".join(one.views), one.licence)
            for one in found.corpora
        ],
        "corpora",
    )
    print_table(
        ("manifest", "by", "when", "files", "size", "signed by", "message"),
        [
            (
                one.manifest[:12],
                one.by,
                one.when,
                f"{one.files:,}",
                size(one.bytes),
                "unknown without cryptography" if one.signed_by is None else ", ".join(one.signed_by),
                one.message,
            )
            for one in found.pushes
        ],
        "pushes",
    )
    for name, why in found.refused.items():
        click.echo(f"manifest {name[:12]} cannot be read: {why}")
    if found.refused:
        sys.exit(1)


@remote_command.command("diff")
@click.argument("remote")
@cache_option
@_skip
@json_option
def remote_diff_command(remote: str, cache: str, skip_manifests: tuple[str, ...], as_json: bool) -> None:
    """Say what REMOTE has and the cache lacks, and the other way round.

    A cache that is not there yet has nothing. Exits with 0 if both have the same, with 1 if not.
    """
    import json

    from embedcache.cli.tables import print_table, size
    from embedcache.share import compare_with_remote

    with watched() as on_progress:
        found = compare_with_remote(cache, remote, skip_manifests=skip_manifests, on_progress=on_progress)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        print_table(
            ("", "name", "to pull: files", "rows", "size", "to push: files", "rows", "size", "in both"),
            [
                (
                    one.kind,
                    one.name,
                    f"{one.remote_files:,}",
                    f"{one.remote_rows:,}",
                    size(one.remote_bytes),
                    f"{one.cache_files:,}",
                    f"{one.cache_rows:,}",
                    size(one.cache_bytes),
                    f"{one.both_files:,}",
                )
                for one in found.lines
            ],
        )
        for line in found.told:
            click.echo(line)
    if not found.is_same:
        sys.exit(1)


@click.command("push")
@click.argument("remote")
@cache_option
@click.option("--teacher", "teachers", multiple=True, metavar="NAME", help="This teacher.  [default: all]")
@click.option("--corpus", "corpora", multiple=True, metavar="NAME", help="This corpus.  [default: all]")
@_no_text
@all_of(*_WRITER)
@_jobs
@json_option
def push_command(
    remote: str, cache: str, teachers: tuple[str, ...], corpora: tuple[str, ...], no_text: bool, **rest: Any
) -> None:
    """Send what the cache has and REMOTE, a name or a URL, lacks.

    Any number of people may push at once; nothing is overwritten, and nothing is sent twice. Interrupted, the
    same command goes on.
    """
    from embedcache.share import push

    as_json = rest.pop("as_json")
    with watched() as on_progress:
        done = push(
            cache,
            remote,
            teachers=teachers,
            corpora=corpora,
            text=not no_text,
            on_progress=on_progress,
            **rest,
        )
    report(done, show_push, as_json)


@click.command("pull")
@click.argument("remote")
@cache_option
@click.option("--teacher", "teachers", multiple=True, metavar="NAME", help="This teacher.  [default: all]")
@click.option(
    "--corpus",
    "corpora",
    multiple=True,
    metavar="NAME[@DIGEST]",
    help="This corpus; of several versions the one whose digest, or manifest's, begins so.  [default: all]",
)
@_no_text
@click.option("--as", "alias", metavar="NAME", help="Call the one --corpus, or else the one --teacher, so.")
@all_of(*_PART)
@all_of(*_READER)
@click.option("--dry-run", is_flag=True, help="Say what would be fetched, and fetch no more than that takes.")
@_jobs
@json_option
def pull_command(
    remote: str,
    cache: str,
    no_text: bool,
    no_sample_check: bool,
    dry_run: bool,
    jobs: int,
    as_json: bool,
    **choice: Any,
) -> None:
    """Fetch what REMOTE, a name or a URL, has and the cache lacks.

    Everything is checked on arrival, and nothing in the cache is overwritten. Interrupted, the same command
    goes on. Exits with 1 if a sample shows vectors of another teacher, in this pull or in what is still here
    of an earlier one.

    With --rows or --where a part of one --corpus becomes a corpus of its own, and of the teachers only the
    vectors of its texts come.
    """
    from embedcache.share import preview_pull, pull

    told: list[str] = []

    def on_estimate(found: PullEstimate) -> None:
        tell_estimate(found)
        told.extend(found.told)

    with watched() as on_progress:
        if dry_run:
            estimate = preview_pull(cache, remote, text=not no_text, on_progress=on_progress, **choice)
        else:
            done = pull(
                cache,
                remote,
                text=not no_text,
                sample_check=not no_sample_check,
                jobs=jobs,
                on_estimate=on_estimate,
                on_progress=on_progress,
                **choice,
            )
    if dry_run:
        report(estimate, show_estimate, as_json)
        return
    report(done, partial(show_pull, told=told), as_json)
    exit_if_bad(done.samples)


@click.command("sync")
@click.argument("remote")
@cache_option
@_no_text
@all_of(*_WRITER, *_READER)
@_jobs
@json_option
def sync_command(
    remote: str, cache: str, no_text: bool, no_sample_check: bool, as_json: bool, **rest: Any
) -> None:
    """Pull what the cache lacks, then push what REMOTE, a name or a URL, lacks."""
    from embedcache.errors import EmbedCacheError
    from embedcache.share import PullResult, SyncResult, sync

    pulled: list[PullResult] = []
    try:
        with watched() as on_progress:
            done = sync(
                cache,
                remote,
                text=not no_text,
                sample_check=not no_sample_check,
                on_pulled=pulled.append,
                on_progress=on_progress,
                **rest,
            )
    except (EmbedCacheError, KeyboardInterrupt):
        if pulled:
            report(SyncResult(pulled[0], None), show_pulled, as_json)
        raise
    report(done, show_sync, as_json)
    if done.pulled is not None:
        exit_if_bad(done.pulled.samples)


@contextmanager
def watched() -> Iterator[OnCheck]:
    """Show progress; an end that is asked for politely is taken as Ctrl-C is: what has arrived stays."""
    from embedcache.cli.check import describe
    from embedcache.cli.progress import ticker

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt("run the same command again")

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with ticker() as show:
            yield lambda progress: show(describe(progress))
    finally:
        signal.signal(signal.SIGTERM, before)
