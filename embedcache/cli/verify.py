"""``embedcache verify`` and ``embedcache repair``."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

import click

from embedcache.cli.options import cache_option, json_option, live_teacher_options
from embedcache.cli.progress_bar import show_progress
from embedcache.cli.tables import print_table, size
from embedcache.sizes import counted

_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,52}\b")


def _short(text: str) -> str:
    """Return a text with its digests cut to 12 digits."""
    return _DIGEST.sub(r"\1…", text)


@click.command("verify")
@cache_option
@json_option
def verify_command(cache: str, as_json: bool) -> None:
    """Read every byte of a cache and list what is not as it was written.

    Nothing is changed. Exits with 1 if anything is damaged.
    """
    from embedcache.verify import verify

    with show_progress() as progress:
        found = verify(cache, progress=progress)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        rows = [
            ("damaged" if one.is_damage else "note", one.kind, _short(one.path), _short(one.what), one.fix)
            for one in found.findings
        ]
        if rows:
            print_table(("", "kind", "file", "found", "remedy"), rows)
        state = f"{len(found.damage):,} damaged" if found.damage else "sound"
        notes = f", {counted(len(found.notes), 'note')}" if found.notes else ""
        files = f"{counted(found.files, 'file')}, {size(found.bytes)}"
        click.echo(f"{found.cache}: {state}{notes}; {files} in {found.seconds:.1f} s")
    if found.damage:
        sys.exit(1)


@click.command("repair")
@cache_option
@live_teacher_options
@click.option("--dry-run", is_flag=True, help="Only print the plan.")
@json_option
def repair_command(cache: str, dry_run: bool, as_json: bool, **computing: Any) -> None:
    """Bring back what is damaged in a cache: encode lost vectors again, write documents again.

    What is damaged is moved to derived/quarantine/. Exits with 1 if something is left to do by hand.
    """
    from embedcache.live import Computing
    from embedcache.repair import repair

    with show_progress() as progress:
        done = repair(cache, computing=Computing(**computing), dry_run=dry_run, progress=progress)
    if as_json:
        click.echo(json.dumps(done.to_json(), indent=2))
    else:
        rows = [(one.outcome, one.kind, _short(one.path), _short(one.detail)) for one in done.fixes]
        if rows:
            print_table(("plan" if dry_run else "done", "kind", "file", ""), rows)
        left = f", {len(done.left):,} left to do" if done.left else ""
        repaired = counted(len(done.fixes) - len(done.left), "file")
        encoded = f"{counted(done.rows_encoded, 'row')} {'to encode' if dry_run else 'encoded'}"
        would = "would be " if dry_run else ""
        click.echo(f"{done.cache}: {repaired} {would}repaired{left}; {encoded} in {done.seconds:.1f} s")
    if done.left:
        sys.exit(1)
