"""Progress and summary of a build, for people."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from embedcache.build_report import BuildProgress, BuildSummary

_LINE_SECONDS = 30.0


def describe(progress: BuildProgress) -> str:
    """Return one line: rows, rates, where the time goes, time left."""
    if progress.phase == "read":
        return f"read {progress.rows:,} rows"
    seconds = max(progress.seconds, 1e-9)
    rate = progress.rows / seconds
    # Parts run side by side; as shares of their sum they say what to speed up.
    whole = max(sum(progress.busy.values()), 1e-9)
    split = " ".join(f"{name} {100 * busy / whole:.0f}%" for name, busy in progress.busy.items())
    left = f", {timedelta(seconds=round((progress.total - progress.rows) / rate))} left" if rate > 0 else ""
    return (
        f"encode {progress.rows:,}/{progress.total:,} rows{left}, {rate:,.0f} rows/s, "
        f"{progress.tokens / seconds:,.0f} tokens/s, {split}"
    )


@contextmanager
def build_progress() -> Iterator[Callable[[BuildProgress], None]]:
    """Yield a callback that keeps a line on the terminal up to date, or now and then writes one to a file."""
    console = Console(file=sys.stderr)
    if console.is_terminal:
        with Live(console=console, refresh_per_second=5, transient=True) as live:
            yield lambda progress: live.update(Text(describe(progress), overflow="ellipsis", no_wrap=True))
        return
    last = 0.0

    def line(progress: BuildProgress) -> None:
        nonlocal last
        if progress.phase == "encode" and progress.seconds - last >= _LINE_SECONDS:
            last = progress.seconds
            print(describe(progress), file=sys.stderr, flush=True)  # noqa: T201 - this is the log of a batch job

    yield line


def size(count: float) -> str:
    """Return a number of bytes for people, in powers of ten."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} TB"


def print_build_summary(summary: BuildSummary) -> None:
    """Print what a build did."""
    table = Table(title=f"{summary.corpus} with {summary.teacher}", show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    rate = f" ({summary.encoded / summary.encode_seconds:,.0f} rows/s)" if summary.encoded else ""
    kept = f"; {summary.unworthy:,} not, their codec keeps less" if summary.unworthy else ""
    rows = [
        ("rows", f"{summary.rows:,}"),
        ("distinct", f"{summary.distinct:,} ({summary.rows - summary.distinct:,} duplicates)"),
        ("encoded", f"{summary.encoded:,}{rate}"),
        ("reused", f"{summary.reused:,} already in the cache"),
        ("carried", f"{summary.carried:,} taken over from the same teacher at another max_length{kept}"),
        ("skipped", ", ".join(f"{n:,} {why}" for why, n in sorted(summary.skipped.items())) or "none"),
        ("truncated", f"{summary.truncated:,} of the encoded were longer than the teacher reads"),
        ("written", size(summary.bytes_written)),
        ("time", f"{summary.seconds:.1f} s ({summary.encode_seconds:.1f} s encoding)"),
        ("contract", summary.contract_id[:12]),
    ]
    if summary.batches_halved:
        rows.insert(
            6, ("halved", f"{summary.batches_halved:,} batches did not fit into memory; lower --batch-tokens")
        )
    for name, value in rows:
        table.add_row(name, value)
    Console().print(table)
