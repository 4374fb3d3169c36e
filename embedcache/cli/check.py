"""``embedcache verify`` and ``embedcache repair``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import cache_option, json_option, live_teacher_options, reader_options
from embedcache.cli.progress import progress_line, ticker

if TYPE_CHECKING:
    from rich.table import Table

    from embedcache.check import CheckProgress, DeepCheck, Finding, Mend
    from embedcache.check.progress import OnCheck

_COLOURS = {
    "ok": "green",
    "look": "yellow",
    "bad": "red",
    "damage": "red",
    "note": "yellow",
    "not repaired": "red",
    "identical": "green",
}
_DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{20,52}\b")


@click.command("verify")
@cache_option
@click.option("--corpus", metavar="NAME", help="Check this corpus alone.  [default: the whole cache]")
@click.option("--teacher", metavar="NAME", help="Check this teacher alone.  [default: the whole cache]")
@click.option("--deep", is_flag=True, help="Also encode a sample again with the live teacher, and compare.")
@click.option(
    "--sample", type=click.IntRange(12), default=1000, show_default=True, help="Texts to encode for --deep."
)
@click.option(
    "--seed", type=click.IntRange(0), default=0, show_default=True, help="Chooses the sample of --deep."
)
@live_teacher_options
@json_option
def verify_command(
    cache: str,
    corpus: str | None,
    teacher: str | None,
    deep: bool,
    sample: int,
    seed: int,
    as_json: bool,
    **computing: Any,
) -> None:
    """Read every byte of a cache and say what is not as it was written.

    Nothing is changed. Exits with 1 if anything is damaged, or --deep finds vectors of another teacher.
    """
    import json

    from embedcache.check import Computing, check_deep, verify

    with _watched() as on_progress:
        found = verify(cache, corpus=corpus, teacher=teacher, on_progress=on_progress)
        checks: list[DeepCheck] = []
        # What is damaged cannot be opened, and need not be compared.
        if deep and not found.damage:
            checks = check_deep(
                cache,
                corpus=corpus,
                teacher=teacher,
                sample=sample,
                seed=seed,
                computing=Computing(**computing),
                on_progress=on_progress,
            )
    if as_json:
        deeply = {"deep": [check.to_json() for check in checks]} if deep else {}
        click.echo(json.dumps({**found.to_json(), **deeply}, indent=2))
    else:
        from embedcache.cli.tables import counted, size

        if found.findings:
            _show(_findings(found.findings))
        for check in checks:
            _show(_deep(check))
        state = f"{len(found.damage):,} damaged" if found.damage else "sound"
        click.echo(
            f"{found.cache}: {state}, {counted(len(found.notes), 'note')}; "
            f"{counted(found.files, 'file')}, {size(found.bytes)}, {counted(found.rows, 'row')} in "
            f"{found.seconds:.1f} s"
        )
        if deep and found.damage:
            click.echo("--deep was left out: repair the cache first")
    if found.damage or any(check.worst == "bad" for check in checks):
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

    from embedcache.check import Computing, repair
    from embedcache.corpus.readers import ReadOptions

    options = {field.name: settings.pop(field.name) for field in fields(ReadOptions)}
    with _watched() as on_progress:
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
        from embedcache.cli.tables import counted

        if done.mends:
            _show(_mends(done.mends, "would be" if dry_run else "was"))
        repaired = len(done.mends) - len(done.left)
        verb, encoded = ("would be repaired", "to encode") if dry_run else ("repaired", "encoded")
        click.echo(
            f"{done.cache}: {repaired:,} {verb}, {len(done.left):,} not; "
            f"{counted(done.rows_encoded, 'row')} {encoded}; {done.seconds:.1f} s"
        )
    if done.left:
        sys.exit(1)


@contextmanager
def _watched() -> Iterator[OnCheck]:
    with ticker() as show:
        yield lambda progress: show(describe(progress))


def describe(progress: CheckProgress) -> str:
    """Return one line: bytes or rows, rate, time left."""
    from embedcache.cli.tables import size

    if not progress.total_bytes:
        return progress_line(progress.phase, progress.rows, progress.seconds, progress.total_rows)
    rate = progress.bytes / max(progress.seconds, 1e-9)
    left = max(progress.total_bytes - progress.bytes, 0) / max(rate, 1e-9)
    return (
        f"{progress.phase} {progress.files:,}/{progress.total_files:,}, {size(progress.bytes)} of "
        f"{size(progress.total_bytes)}, {size(rate)}/s, {left:,.0f} s left"
    )


def _show(table: Table) -> None:
    from rich.console import Console

    Console().print(table)


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], coloured: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in rows:
        cells = [Text(_DIGEST.sub(r"\1…", cell)) for cell in row]
        cells[coloured].stylize(_COLOURS.get(row[coloured], ""))
        table.add_row(*cells)
    return table


def _findings(findings: Sequence[Finding]) -> Table:
    rows = [(one.path, one.kind, one.severity, one.found, one.way_out) for one in findings]
    return _table("findings", ("file", "what it is", "severity", "found", "way out"), rows, coloured=2)


def _mends(mends: Sequence[Mend], tense: str) -> Table:
    rows = [(one.path, one.kind, one.outcome, f"{one.rows:,}", one.detail) for one in mends]
    headings = ("file", "what it is", f"it {tense}", "rows encoded", "how")
    return _table("repair", headings, rows, coloured=2)


def _deep(check: DeepCheck) -> Table:
    rows = [
        (line.measure, f"{line.stored:.2e}", f"{line.noise:.2e}", line.verdict, line.meaning)
        for line in check.lines
    ]
    dtypes = ", ".join(check.compute_dtypes) or "an unknown dtype"
    title = (
        f"{check.teacher}: {check.sampled:,} of {check.vectors:,} vectors, computed in {dtypes}, "
        f"encoded again in {check.compute_dtype}"
    )
    return _table(title, ("measure", "stored", "noise", "verdict", "meaning"), rows, coloured=3)
