"""``embedcache push``, ``pull`` and ``remote``."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Protocol

import click

from embedcache.cli.options import all_of, cache_option, json_option, limit_options

if TYPE_CHECKING:
    from embedcache.share import PullResult, PushResult
    from embedcache.share.inspect import Listing, RemoteCheck
    from embedcache.share.tidy import TidyResult

_dry_run = click.option("--dry-run", is_flag=True, help="Only say what would be transferred or deleted.")
_CHOICE = (
    click.option(
        "--teacher", "teachers", multiple=True, metavar="NAME", help="This teacher.  [default: all]"
    ),
    click.option(
        "--corpus",
        "corpora",
        multiple=True,
        metavar="NAME[@DIGEST]",
        help="This corpus; of a remote, also no vectors but those of its texts.  [default: all]",
    ),
    click.option("--no-text", is_flag=True, help="Leave out corpora; vectors only."),
)


class _Result(Protocol):
    def to_json(self) -> dict[str, object]: ...


@click.command("push")
@click.argument("remote")
@cache_option
@all_of(*_CHOICE)
@click.option("--by", default="", metavar="NAME", help="Who pushes; shown on the card.")
@click.option("--message", "-m", default="", help="What for; shown on the card.")
@click.option("--licence", default="", help="Licence of the texts; shown on the card.")
@click.option("--sign", metavar="KEYFILE", help="Sign with this private ed25519 key, OpenSSH's or PEM.")
@_dry_run
@json_option
def push_command(
    remote: str,
    cache: str,
    teachers: tuple[str, ...],
    corpora: tuple[str, ...],
    no_text: bool,
    as_json: bool,
    **rest: Any,
) -> None:
    """Send what the cache has and REMOTE, a name or a URL, lacks.

    Any number of people may push at once. Interrupted, the same command goes on.
    """
    from embedcache.cli.progress_bar import show_progress
    from embedcache.share import Selection, push

    selection = Selection(teachers, corpora, text=not no_text)
    with show_progress() as progress:
        done = push(cache, remote, selection, progress=progress, **rest)
    if not _printed(done, as_json):
        _show_push(done, is_done=not rest["dry_run"])


def _show_push(done: PushResult, *, is_done: bool) -> None:
    from embedcache.cli.tables import print_table, size

    sent = f"{done.sent:,} objects, {size(done.sent_bytes)}"
    rows = [
        ("new files", f"{done.files:,}"),
        ("sent" if is_done else "to send", sent),
        ("already there", f"{done.present:,} objects"),
        ("manifest", ", ".join(one[:12] for one in done.manifests) or "none"),
        ("time", f"{done.seconds:.1f} s"),
    ]
    print_table(("push", done.remote), rows)


@click.command("pull")
@click.argument("remote")
@cache_option
@all_of(*_CHOICE)
@click.option("--rows", type=click.IntRange(1), help="The first N rows of the one --corpus.")
@click.option(
    "--where", metavar="SQL", help="The rows of the one --corpus for which this holds: \"label = 'news'\"."
)
@limit_options
@click.option(
    "--no-sample-check",
    is_flag=True,
    help="Do not compare vectors with the live teacher and with the cache's own.",
)
@_dry_run
@json_option
def pull_command(
    remote: str,
    cache: str,
    no_text: bool,
    no_sample_check: bool,
    dry_run: bool,
    as_json: bool,
    teachers: tuple[str, ...],
    corpora: tuple[str, ...],
    rows: int | None,
    where: str | None,
    **limits: Any,
) -> None:
    """Fetch what REMOTE, a name or a URL, has and the cache lacks.

    Everything is checked before it enters the cache. Exits with 1 if a teacher's vectors are not the
    teacher's; nothing of that teacher enters then. Interrupted, the same command goes on.
    """
    from embedcache.cli.progress_bar import show_progress
    from embedcache.share import Selection, pull

    selection = Selection(teachers, corpora, not no_text, rows, where)
    with show_progress() as progress:
        done = pull(
            cache,
            remote,
            selection,
            sample_check=not no_sample_check,
            dry_run=dry_run,
            progress=progress,
            **limits,
        )
    if not _printed(done, as_json):
        _show_pull(done, is_done=not dry_run)
    if done.is_bad:
        sys.exit(1)


def _show_pull(done: PullResult, *, is_done: bool) -> None:
    from embedcache.cli.tables import print_table, size

    rows = [
        ("fetched" if is_done else "to fetch, at most", f"{done.files:,} files, {size(done.bytes)}"),
        ("corpora", ", ".join(done.corpora) or "none"),
        ("vectors", ", ".join(f"{rows:,} of {name}" for name, rows in done.vectors.items()) or "none"),
        *(("left out", reason) for reason in done.left_out),
    ]
    for one in done.samples:
        own = f", {one.own:,} rows beside the cache's own" if one.own else ""
        detail = f"{one.verdict} ({one.sampled:,} texts{own}): {one.message}"
        rows.append((f"sample of {one.teacher}", detail))
    if is_done:
        rows.append(("time", f"{done.seconds:.1f} s"))
    print_table(("pull", done.remote), rows)


@click.group("remote")
def remote_command() -> None:
    """Name remotes, look at what they have, and tidy them."""


@remote_command.command("add")
@click.argument("name")
@click.argument("url", required=False)
@click.option("--remove", is_flag=True, help="Forget the name; the remote stays.")
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
@click.argument("manifest", required=False)
@json_option
def ls_command(remote: str | None, manifest: str | None, as_json: bool) -> None:
    """List the pushes to REMOTE, or the card of one; without REMOTE, the remotes that have a name.

    Exits with 1 if a manifest cannot be used.
    """
    from embedcache.share import list_remote, list_remotes

    if remote is None:
        named = list_remotes()
        lines = [f"{name}: {url}" for name, url in named.items()]
        click.echo(json.dumps(named, indent=2) if as_json else "\n".join(lines) or "no remotes have a name")
        return
    listing = list_remote(remote, manifest)
    if not _printed(listing, as_json):
        _show_listing(listing, is_card=manifest is not None)
    if listing.refused:
        sys.exit(1)


def _show_listing(listing: Listing, *, is_card: bool) -> None:
    from embedcache.cli.tables import print_table, size

    rows = []
    for push in listing.pushes:
        card = push.manifest
        teachers = ", ".join(f"{one.names[0]} ({one.rows:,})" for one in card.teachers)
        corpora = ", ".join(f"{one.name} ({one.rows:,})" for one in card.corpora)
        total = size(sum(file.bytes for file in card.files))
        signed = f"signed by {push.signatures}" if push.signatures else ""
        cells = (push.digest[:12], card.when, card.by, card.message, teachers, corpora, total, signed)
        rows.append(cells)
    columns = ("manifest", "when", "by", "message", "teachers (new rows)", "corpora (rows)", "size", "")
    if is_card and rows:
        (push,) = listing.pushes
        lines = [*zip(columns[:-1], rows[0], strict=False), ("signatures", str(push.signatures))]
        lines += [("licence", push.manifest.licence), ("files", f"{len(push.manifest.files):,}")]
        teachers_of = push.manifest.teachers
        lines += [(f"model of {one.names[0]}", f"{one.model} {one.licence}") for one in teachers_of]
        print_table(("card", listing.remote), lines)
    else:
        print_table(columns, rows, listing.remote)
    for digest, why in listing.refused.items():
        click.echo(f"manifest {digest[:12]} is refused: {why}")


@remote_command.command("verify")
@click.argument("remote")
@click.option("--delete-damaged", is_flag=True, help="Delete damaged objects; the next push sends them.")
@json_option
def verify_command(remote: str, delete_damaged: bool, as_json: bool) -> None:
    """Read every object of REMOTE. Exits with 1 if one is missing or damaged."""
    from embedcache.cli.progress_bar import show_progress
    from embedcache.share import verify_remote

    with show_progress() as progress:
        found = verify_remote(remote, delete_damaged=delete_damaged, progress=progress)
    if not _printed(found, as_json):
        _show_check(found)
    if not found.is_sound:
        sys.exit(1)


def _show_check(found: RemoteCheck) -> None:
    from embedcache.cli.tables import print_table, size

    wrong = [("missing", found.missing), ("damaged", found.damaged)]
    rows = [(what, sha256[:12], by) for what, those in wrong for sha256, by in those.items()]
    if rows:
        print_table(("found", "object", "pushed in"), rows, found.remote)
    click.echo(
        f"{found.objects:,} objects, {size(found.bytes)}: {len(found.missing):,} missing, "
        f"{len(found.damaged):,} damaged, {found.deleted:,} deleted"
    )


@remote_command.command("gc")
@click.argument("remote")
@click.option(
    "--grace", default="14d", show_default=True, metavar="DAYS", help="Keep what is younger; at least 1d."
)
@_dry_run
@json_option
def gc_command(remote: str, grace: str, dry_run: bool, as_json: bool) -> None:
    """Delete from REMOTE the objects that no push lists; safe while others push."""
    from embedcache.cli.progress_bar import show_progress
    from embedcache.share import collect

    try:
        days = float(grace.removesuffix("d"))
    except ValueError:
        raise click.BadParameter(f"{grace!r}: expected days, as in 14d", param_hint="--grace") from None
    with show_progress() as progress:
        done = collect(remote, grace_days=days, dry_run=dry_run, progress=progress)
    if not _printed(done, as_json):
        _show_tidy(done, "would go" if dry_run else "deleted")


@remote_command.command("drop")
@click.argument("remote")
@click.argument("manifests", nargs=-1, required=True, metavar="DIGITS...")
@click.option("--now", is_flag=True, help="Delete its objects at once; safe only while nobody pushes.")
@json_option
def drop_command(remote: str, manifests: tuple[str, ...], now: bool, as_json: bool) -> None:
    """Take back the pushes to REMOTE whose manifests begin with DIGITS."""
    from embedcache.cli.progress_bar import show_progress
    from embedcache.share import drop

    with show_progress() as progress:
        done = drop(remote, manifests, now=now, progress=progress)
    if not _printed(done, as_json):
        for digest in done.manifests:
            click.echo(f"took back {digest[:12]}")
        _show_tidy(done, "deleted")


def _show_tidy(done: TidyResult, verb: str) -> None:
    from embedcache.cli.tables import size

    kept = f"; {done.kept:,} unlisted are too young" if done.kept else ""
    click.echo(f"{done.files:,} files {verb}, {size(done.bytes)}{kept}")


def _printed(result: _Result, as_json: bool) -> bool:
    """Print a result as JSON where that is asked for; return whether it was."""
    if as_json:
        click.echo(json.dumps(result.to_json(), indent=2))
    return as_json
