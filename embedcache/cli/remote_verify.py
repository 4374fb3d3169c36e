"""``embedcache remote verify``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from embedcache.cli.options import jobs_option, json_option

if TYPE_CHECKING:
    from embedcache.share import RemoteCheck

_DIGEST = re.compile(r"[0-9a-f]{64}")


@click.command("verify")
@click.argument("remote")
@click.option(
    "--delete-damaged",
    is_flag=True,
    help="Delete objects that are damaged: the next push from a cache that has them sends them again.",
)
@jobs_option
@json_option
def remote_verify_command(remote: str, delete_damaged: bool, jobs: int, as_json: bool) -> None:
    """Read every object of REMOTE, and say which are damaged, and which are missing.

    Exits with 1 if any is, or a manifest cannot be read, but not for what was deleted and no manifest lists.
    Others may push meanwhile; nothing is deleted until nobody does.
    """
    from embedcache.cli.progress import interruptible
    from embedcache.cli.share_show import report
    from embedcache.share import check_remote

    with interruptible() as on_progress:
        check = check_remote(remote, delete_damaged=delete_damaged, jobs=jobs, on_progress=on_progress)
    report(check, _show, as_json)
    if not check.is_sound:
        sys.exit(1)


def _show(check: RemoteCheck) -> None:
    from embedcache.cli.tables import size
    from embedcache.sizes import counted

    for fault in check.faults:
        # On lines of their own: with 64 digits and more, a table would not fit on a terminal.
        click.echo(fault.path)
        is_bad = "damaged, deleted" if fault.deleted else fault.fault
        click.echo(f"  {is_bad}" + ("" if fault.bytes is None else f", {size(fault.bytes)}"))
        for file in fault.files or ("listed by no manifest",):
            click.echo(f"  {_DIGEST.sub(_shortened, file)}")
    for line in check.wrong:
        click.echo(
            f"manifest {line.manifest[:12]} says {line.said} of {line.path}, which has {line.found}: "
            f"--skip-manifest {line.manifest[:12]} does without it, 'embedcache remote gc --drop' deletes it"
        )
    for name, why in check.refused.items():
        click.echo(f"manifest {name[:12]} cannot be read: {why}")
    damaged = [fault for fault in check.faults if fault.fault == "damaged"]
    missing = len(check.faults) - len(damaged)
    are_deleted = " and deleted" if damaged and all(fault.deleted for fault in damaged) else ""
    state = "no object damaged or missing"
    if check.faults:
        state = f"{len(damaged):,} damaged{are_deleted}, {missing:,} missing"
    read = f"{counted(check.objects, 'object')}, {size(check.bytes)} in {check.seconds:.1f} s"
    click.echo(f"{check.remote}: {state}; {read}")
    for advice in _advice(check):
        click.echo(advice)


def _shortened(digest: re.Match[str]) -> str:
    return digest[0][:12]


def _advice(check: RemoteCheck) -> Iterator[str]:
    """Yield what else is to be said, and what helps."""
    from embedcache.sizes import counted

    if check.changing:
        yield f"{counted(check.changing, 'object')} being written and not judged"
    if check.kept:
        yield check.kept
    stays = [fault for fault in check.faults if fault.fault == "damaged" and not fault.deleted]
    gone = [fault for fault in check.faults if fault not in stays]
    if stays and not check.kept:
        # An object of the right size is not sent again while it lies there.
        again = "; then 'embedcache push' from a cache that has it sends it again"
        yield f"--delete-damaged deletes what is damaged{again if any(one.files for one in stays) else ''}"
    if listed := sum(bool(fault.files) for fault in gone):
        are, it = ("is", "it") if listed == 1 else ("are", "them")
        yield (
            f"{counted(listed, 'object')} {are} missing that manifests list: 'embedcache push' from a cache "
            f"that has {it} sends {it} again"
        )
    if spare := sum(fault.deleted and not fault.files for fault in gone):
        was, it = ("was", "it") if spare == 1 else ("were", "them")
        yield f"{counted(spare, 'deleted object')} {was} listed by no manifest: nobody needs {it}"
    if check.misplaced:
        files = counted(len(check.misplaced), "file")
        yield (
            f"{files} in a wrong folder, as {check.misplaced[0]}, which nobody reads: 'embedcache remote gc "
            "--yes' deletes such files a week after they were written"
        )
