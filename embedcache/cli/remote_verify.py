"""``embedcache remote verify``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from embedcache.cli.options import jobs_option, json_option

if TYPE_CHECKING:
    from embedcache.share import RemoteCheck


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
    from embedcache.cli.tables import print_table, size
    from embedcache.sizes import counted

    if check.faults:
        rows = [
            (
                fault.path,
                "damaged, deleted" if fault.deleted else fault.fault,
                "" if fault.bytes is None else size(fault.bytes),
                ", ".join(fault.files) or "listed by no manifest",
            )
            for fault in check.faults
        ]
        print_table(("object", "is", "size", "what it should be"), rows, check.remote)
    for name, why in check.refused.items():
        click.echo(f"manifest {name[:12]} cannot be read: {why}")
    damaged = [fault for fault in check.faults if fault.fault == "damaged"]
    missing = len(check.faults) - len(damaged)
    deleted = sum(fault.deleted for fault in damaged)
    state = (
        f"{len(damaged):,} damaged, {missing:,} missing" if check.faults else "no object damaged or missing"
    )
    told = [f"{check.changing:,} being written and not judged"] if check.changing else []
    if len(damaged) > deleted and not check.kept:
        told.append("--delete-damaged deletes what is damaged")
    if check.kept:
        told.append(check.kept)
    if check.misplaced:
        files = counted(len(check.misplaced), "file")
        told.append(
            f"{files} in a wrong folder, as {check.misplaced[0]}, which nobody reads: 'embedcache remote gc "
            "--yes' deletes such files a week after they were written"
        )
    if any(fault.files for fault in check.faults):
        told.append("'embedcache push' from a cache that has it sends it again")
    if any(fault.deleted and not fault.files for fault in check.faults):
        told.append("what was deleted and no manifest lists, nobody needs")
    click.echo(
        "; ".join(
            [
                f"{check.remote}: {state}",
                f"{counted(check.objects, 'object')}, {size(check.bytes)} in {check.seconds:.1f} s",
                *told,
            ]
        )
    )
