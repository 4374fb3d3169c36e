"""``embedcache remote gc``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from embedcache.cli.options import jobs_option, json_option
from embedcache.transfer_defaults import GRACE_HOURS

if TYPE_CHECKING:
    from embedcache.share import CollectResult
    from embedcache.share.collect import Kept


@click.command("gc")
@click.argument("remote")
@click.option(
    "--older",
    type=click.FloatRange(0),
    default=GRACE_HOURS,
    show_default=True,
    metavar="HOURS",
    help="Leave alone what was written within so many hours; a push that was stopped may be taken up again.",
)
@click.option(
    "--drop",
    multiple=True,
    metavar="DIGITS",
    help="Take back the push whose manifest begins so, with six digits or more: what was news in it and it "
    "alone lists goes at once. May be given several times.",
)
@click.option("--yes", is_flag=True, help="Delete it.  [default: only list what would be deleted]")
@jobs_option
@json_option
def remote_gc_command(
    remote: str, older: float, drop: tuple[str, ...], yes: bool, jobs: int, as_json: bool
) -> None:
    """Delete from REMOTE replaced manifests, what no manifest lists, and temporary files.

    Nothing that a pull could find is lost, but for what --drop takes back. Nothing is deleted while anybody
    pushes.

    If a manifest cannot be read, nothing is deleted; with --drop what it names is, but no object. Exits with
    1 then.
    """
    from embedcache.cli.progress import interruptible
    from embedcache.cli.share_show import report
    from embedcache.share import collect_remote

    with interruptible() as on_progress:
        result = collect_remote(
            remote, hours=older, drop=drop, delete=yes, jobs=jobs, on_progress=on_progress
        )
    report(result, _show, as_json)
    if result.unreadable:
        sys.exit(1)


def _show(result: CollectResult) -> None:
    from embedcache.cli.tables import print_table, size
    from embedcache.sizes import counted

    if result.found:
        rows = [
            (file.path, file.why, "" if file.bytes is None else size(file.bytes)) for file in result.found
        ]
        print_table(("file", "why", "size"), rows, result.remote)
    total = size(sum(file.bytes or 0 for file in result.found))
    them = "it" if len(result.found) == 1 else "them"
    verb = "freed" if result.deleted else f"would be freed; --yes deletes {them}"
    young = f"; {counted(result.young, 'more file')} too young, or of an age unknown" if result.young else ""
    click.echo(f"{counted(len(result.found), 'file')} that nobody needs, {total} {verb}{young}")
    for kept in result.kept:
        click.echo(_stays(kept, result.deleted))
    for name in () if result.deleted else result.unsure:
        click.echo(
            f"manifest {name[:12]} does not say which of its files were news: it may list files of earlier "
            "pushes, and what no other manifest lists goes with it"
        )
    for name, why in result.unreadable.items():
        click.echo(
            f"manifest {name[:12]} cannot be read ({why}), and may list any object: all objects and cards "
            f"stay; upgrade embedcache, or take it back with --drop {name[:12]}, then run 'embedcache remote "
            "gc' with --older 0 to delete what the dropped pushes alone listed"
        )


def _stays(kept: Kept, is_done: bool) -> str:
    """Return what is to be said of the files of a push that stay."""
    from embedcache.sizes import counted

    one = kept.files == 1
    stay, them = ("stays", "it") if one else ("stay", "them")
    verb = "lists" if is_done else "will list"
    signed = f", without the signature of {kept.dropped[:12]}" if kept.was_signed else ""
    return (
        f"{counted(kept.files, 'file')} of {kept.dropped[:12]} that earlier pushes had declared {stay}: "
        f"manifest {kept.manifest[:12]} {verb} {them}{signed}; --drop {kept.manifest[:12]} takes {them} back "
        "as well"
    )
