"""``embedcache push``, ``pull`` and ``remote``."""

from __future__ import annotations

import sys
from typing import Any

import click

from embedcache.cli.options import (
    all_of,
    cache_option,
    dry_run_option,
    flag,
    json_option,
    limit_options,
    many,
    named,
)
from embedcache.cli.tables import print_json, print_result, print_table
from embedcache.progress import show_progress
from embedcache.sizes import size

_CHOICE = (
    many("--teacher", "teachers", "NAME", "Teacher to take.  [default: all]"),
    many(
        "--corpus",
        "corpora",
        "NAME[@DIGEST]",
        "Corpus to take; pull fetches the vectors of its texts.  [default: all]",
    ),
)


def _counted(count: int, total_bytes: int, unit: str = "files") -> str:
    return f"{count:,} {unit}, {size(total_bytes)}"


@click.command("push")
@click.argument("remote")
@cache_option
@all_of(*_CHOICE)
@flag("--no-text", "Leave out corpora; vectors only.")
@click.option("--by", default="", metavar="NAME", help="Who pushes; shown on the card.")
@click.option("--message", "-m", default="", help="Purpose of the push; shown on the card.")
@click.option("--licence", default="", help="Licence of the texts; shown on the card.")
@named("--sign", "KEYFILE", "Sign with this private ed25519 key of OpenSSH.")
@dry_run_option
@json_option
def push_command(
    remote: str, cache: str, no_text: bool, dry_run: bool, as_json: bool, **options: Any
) -> None:
    """Send what the cache has and REMOTE, a name or a URL, lacks.

    Any number of people may push at once. After an interruption, run the same command again.
    """
    from embedcache.share import Selection, push

    selection = Selection(options.pop("teachers"), options.pop("corpora"), text=not no_text)
    with show_progress() as progress:
        done = push(cache, remote, selection, dry_run=dry_run, progress=progress, **options)
    rows = [
        ("new files", f"{done.files:,}"),
        ("to send" if dry_run else "sent", _counted(done.sent, done.sent_bytes, "objects")),
        ("already there", f"{done.present:,} objects"),
        ("manifest", done.manifest[:12]),
    ]
    print_result(done, as_json, ("push", done.remote), rows)


@click.command("pull")
@click.argument("remote")
@cache_option
@all_of(*_CHOICE)
@named("--where", "SQL", "Rows of the one --corpus for which this holds: \"label = 'news'\".")
@limit_options
@many("--skip-manifest", "skip_manifests", "DIGITS", "Leave out the push whose manifest begins so.")
@dry_run_option
@json_option
def pull_command(remote: str, cache: str, dry_run: bool, as_json: bool, **options: Any) -> None:
    """Fetch what REMOTE, a name or a URL, has and the cache lacks.

    Everything is checked before it enters the cache. Exits with 1 if a teacher's vectors are not the
    teacher's; nothing of that teacher enters then. After an interruption, run the same command again.
    """
    from embedcache.share import Selection, pull

    part = {name: options.pop(name) for name in ("teachers", "corpora", "where")}
    with show_progress() as progress:
        done = pull(cache, remote, Selection(**part), dry_run=dry_run, progress=progress, **options)
    lines = [
        ("to fetch, at most" if dry_run else "fetched", _counted(done.files, done.bytes)),
        ("corpora", ", ".join(done.corpora)),
        ("vectors", ", ".join(f"{count:,} of {name}" for name, count in done.vectors.items())),
        *(("left out", reason) for reason in done.left_out),
    ]
    lines += [(f"sample of {one.teacher}", str(one)) for one in done.samples]
    print_result(done, as_json, ("pull", done.remote), lines)
    if done.is_bad:
        sys.exit(1)


@click.group("remote")
def remote_command() -> None:
    """Name remotes, look at what they have, and tidy them."""


@remote_command.command("add")
@click.argument("name")
@click.argument("url", required=False)
@flag("--remove", "Forget the name; the remote stays.")
def add_command(name: str, url: str | None, remove: bool) -> None:
    """Name the remote at URL: a folder, s3://, gs://, az://, sftp://, https:// or hf://."""
    from embedcache.share import add_remote, remove_remote

    if remove == (url is not None):
        raise click.UsageError("give a URL, or --remove")
    if url is None:
        remove_remote(name)
        click.echo(f"removed {name}")
    else:
        click.echo(f"{name}: {add_remote(name, url)}")


@remote_command.command("ls")
@click.argument("remote", required=False)
@json_option
def ls_command(remote: str | None, as_json: bool) -> None:
    """List the pushes to REMOTE; without REMOTE, the remotes that have a name."""
    from embedcache.share import list_remote, list_remotes

    if remote is None:
        named = list_remotes()
        lines = [f"{name}: {url}" for name, url in named.items()]
        print_json(named) if as_json else click.echo("\n".join(lines) or "no remotes have a name")
        return
    pushes = list_remote(remote)
    if as_json:
        print_json({digest: push.model_dump(exclude={"files"}) for digest, push in pushes.items()})
        return
    columns = (
        "manifest",
        "when",
        "by",
        "message",
        "licence",
        "teachers (new rows)",
        "corpora (rows)",
        "size",
    )
    rows = []
    for digest, push in pushes.items():
        teachers = ", ".join(f"{one.names[0]} ({one.rows:,})" for one in push.teachers)
        corpora = ", ".join(f"{one.name} ({one.rows:,})" for one in push.corpora)
        about = (digest[:12], push.when, push.by, push.message, push.licence, teachers, corpora)
        rows.append((*about, size(sum(file.bytes for file in push.files))))
    print_table(columns, rows, remote)
    click.echo(f"{len(rows)} pushes to {remote}")


@remote_command.command("verify")
@click.argument("remote")
@flag("--delete-damaged", "Delete damaged objects; the next push sends them.")
@json_option
def verify_command(remote: str, delete_damaged: bool, as_json: bool) -> None:
    """Read every object of REMOTE. Exits with 1 if one is missing or damaged."""
    from embedcache.share import verify_remote

    with show_progress() as progress:
        found = verify_remote(remote, delete_damaged=delete_damaged, progress=progress)
    wrong = [("missing", found.missing), ("damaged", found.damaged)]
    rows = [("read", _counted(found.objects, found.bytes, "objects"))]
    rows += [(what, f"{one[:12]}, pushed in {by}") for what, those in wrong for one, by in those.items()]
    rows += [("deleted", f"{found.deleted:,} damaged")] if found.deleted else []
    print_result(found, as_json, ("verify", found.remote), rows)
    if not found.is_sound:
        sys.exit(1)


@remote_command.command("gc")
@click.argument("remote")
@dry_run_option
@json_option
def gc_command(remote: str, dry_run: bool, as_json: bool) -> None:
    """Delete from REMOTE what no push has listed for 14 days; safe while others push."""
    from embedcache.share import collect

    with show_progress() as progress:
        done = collect(remote, dry_run=dry_run, progress=progress)
    rows = [("to delete" if dry_run else "deleted", _counted(done.files, done.bytes))]
    print_result(done, as_json, ("gc", done.remote), rows)


@remote_command.command("drop")
@click.argument("remote")
@click.argument("manifests", nargs=-1, required=True, metavar="DIGITS...")
@flag("--now", "Delete its objects at once; safe only while no push is running.")
@json_option
def drop_command(remote: str, manifests: tuple[str, ...], now: bool, as_json: bool) -> None:
    """Take back the pushes to REMOTE whose manifests begin with DIGITS."""
    from embedcache.share import drop

    done = drop(remote, manifests, now=now)
    rows = [("taken back", len(manifests)), ("deleted", _counted(done.files, done.bytes))]
    print_result(done, as_json, ("drop", done.remote), rows)
