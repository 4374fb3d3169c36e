"""``embedcache verify`` and ``embedcache repair``."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import cache_option, json_option, live_teacher_options, reader_options
from embedcache.cli.progress import checked
from embedcache.cli.tables import WIDTH_WITHOUT_TERMINAL, size
from embedcache.sizes import counted

if TYPE_CHECKING:
    from embedcache.check import Finding, Mend

_COLOURS = {
    "damage": "red",
    "note": "yellow",
    "not repaired": "red",
    "identical": "green",
}
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,52}\b")
_SHORT = r"\1…"


@click.command("verify")
@cache_option
@click.option("--corpus", metavar="NAME", help="Check this corpus alone.  [default: the whole cache]")
@click.option("--teacher", metavar="NAME", help="Check this teacher alone.  [default: the whole cache]")
@json_option
def verify_command(
    cache: str,
    corpus: str | None,
    teacher: str | None,
    as_json: bool,
) -> None:
    """Read every byte of a cache and say what is not as it was written.

    Nothing is changed. Exits with 1 if anything is damaged.
    """
    import json

    from embedcache.check import verify

    with checked() as on_progress:
        found = verify(cache, corpus=corpus, teacher=teacher, on_progress=on_progress)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        for finding in found.findings:
            _show_finding(finding)
        state = f"{len(found.damage):,} damaged" if found.damage else "sound"
        click.echo(
            f"{found.cache}: {state}, {counted(len(found.notes), 'note')}; "
            f"{counted(found.files, 'file')}, {size(found.bytes)}, "
            f"{counted(found.corpus_rows, 'corpus row')}, {counted(found.vectors, 'vector')} "
            f"in {found.seconds:.1f} s"
        )
    if found.damage:
        sys.exit(1)


@click.command("repair")
@cache_option
@click.option(
    "--source",
    "sources",
    multiple=True,
    metavar="FILE",
    help="File a damaged corpus was built from; may be given several times.  [default: where it was]",
)
@reader_options
@live_teacher_options
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option(
    "--quarantine", is_flag=True, help="Move files that embedcache does not know to quarantine/ in the cache."
)
@json_option
def repair_command(
    cache: str,
    sources: tuple[str, ...],
    dry_run: bool,
    quarantine: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Bring back what is damaged in a cache, identical to what it was wherever that can be done.

    Only rows of damaged shards are encoded again. What cannot be repaired stays as it is and is listed with
    what is needed; then the exit code is 1. Unknown files are never deleted.
    """
    import json
    from dataclasses import fields

    from embedcache.check import repair
    from embedcache.corpus.readers import ReadOptions
    from embedcache.live import Computing

    options = {field.name: settings.pop(field.name) for field in fields(ReadOptions)}
    with checked() as on_progress:
        done = repair(
            cache,
            sources=[Path(source) for source in sources],
            options=ReadOptions(**options),
            computing=Computing(**settings),
            dry_run=dry_run,
            quarantine=quarantine,
            on_progress=on_progress,
        )
    if as_json:
        click.echo(json.dumps(done.to_json(), indent=2))
    else:
        for mend in done.mends:
            _show_mend(mend, dry_run=dry_run)
        repaired = len(done.mends) - len(done.left)
        rows = counted(done.rows_encoded, "row")
        encoded = f"up to {rows} to encode" if dry_run and done.rows_encoded else f"{rows} encoded"
        click.echo(
            f"{done.cache}: {repaired:,} {'would be ' if dry_run else ''}repaired, {len(done.left):,} not; "
            f"{encoded}; {done.seconds:.1f} s"
        )
    if done.left:
        sys.exit(1)


def _show_block(about: str, verdict: str, shown: str, more: str) -> None:
    """Print what something is about and the verdict as one line, and what else there is to say indented."""
    width = shutil.get_terminal_size((WIDTH_WITHOUT_TERMINAL, 24)).columns
    styled = click.style(shown, fg=_COLOURS.get(verdict))
    click.echo(f"{_DIGEST.sub(_SHORT, about)}: {styled}")
    indent = "  "
    text = _DIGEST.sub(_SHORT, more)
    click.echo(
        textwrap.fill(
            text, max(width, 40), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )
    )


def _show_finding(one: Finding) -> None:
    _show_block(f"{one.path} ({one.kind})", one.severity, one.severity, f"{one.found}; {one.way_out}")


def _show_mend(one: Mend, *, dry_run: bool) -> None:
    from embedcache.check.repair.mending import NOT_REPAIRED, TO_ENCODE

    shown = one.outcome
    if dry_run and one.outcome not in (NOT_REPAIRED, TO_ENCODE):
        shown = f"would be {shown}"
    if one.rows:
        rows = counted(one.rows, "row")
        shown += f", up to {rows}" if dry_run else f", {rows} encoded"
    _show_block(f"{one.path} ({one.kind})", one.outcome, shown, one.detail)
