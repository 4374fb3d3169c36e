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
    from embedcache.cli.remote import watched
    from embedcache.cli.share_show import report
    from embedcache.share import check_remote

    with watched() as on_progress:
        found = check_remote(remote, delete_damaged=delete_damaged, jobs=jobs, on_progress=on_progress)
    report(found, _show, as_json)
    if not found.is_sound:
        sys.exit(1)


def _show(found: RemoteCheck) -> None:
    from embedcache.cli.tables import print_table, size
    from embedcache.sizes import counted

    if found.faults:
        rows = [
            (
                one.path,
                "damaged, deleted" if one.deleted else one.fault,
                "" if one.bytes is None else size(one.bytes),
                ", ".join(one.files) or "listed by no manifest",
            )
            for one in found.faults
        ]
        print_table(("object", "is", "size", "what it should be"), rows, found.remote)
    for name, why in found.refused.items():
        click.echo(f"manifest {name[:12]} cannot be read: {why}")
    damaged = [one for one in found.faults if one.fault == "damaged"]
    missing = len(found.faults) - len(damaged)
    deleted = sum(one.deleted for one in damaged)
    state = (
        f"{len(damaged):,} damaged, {missing:,} missing" if found.faults else "no object damaged or missing"
    )
    told = [f"{found.changing:,} being written and not judged"] if found.changing else []
    if len(damaged) > deleted and not found.kept:
        told.append("--delete-damaged deletes what is damaged")
    if found.kept:
        told.append(found.kept)
    if any(one.files for one in found.faults):
        told.append("'embedcache push' from a cache that has it sends it again")
    if any(one.deleted and not one.files for one in found.faults):
        told.append("what was deleted and no manifest lists, nobody needs")
    click.echo(
        "; ".join(
            [
                f"{found.remote}: {state}",
                f"{counted(found.objects, 'object')}, {size(found.bytes)} in {found.seconds:.1f} s",
                *told,
            ]
        )
    )
