"""The card of a push: a summary for people, with the licences that were declared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from embedcache.check.findings import Kind
from embedcache.share.pushing.selection import Selection

_UNKNOWN = "not declared"


def card_of(selection: Selection, *, by: str, when: str, message: str) -> str:
    """Return the card of a push, as Markdown.

    Args:
        selection: what was pushed.
        by: who pushed; empty where that was not given.
        when: when; empty where that was not given.
        message: what for; empty where that was not given.
    """
    files = selection.shared
    size = sum(file.bytes for file in files)
    lines = ["# Teacher vectors", ""]
    if message:
        lines += [_plain(message), ""]
    lines += [f"Pushed by {_plain(by)}{f' on {when}' if when else ''}.", ""] if by else []
    lines += [f"{len(files):,} files, {size:,} bytes.", "", "## Teachers", ""]
    lines += _table(
        ("teacher", "contract", "vectors", "model", "licence of the model"),
        [
            (
                ", ".join(one.names),
                one.contract[:12],
                f"{one.rows:,}",
                one.model or _UNKNOWN,
                one.licence or _UNKNOWN,
            )
            for one in selection.teachers
        ],
    )
    lines += ["", "## Texts", ""]
    if selection.corpora:
        lines += _table(
            ("corpus", "digest", "rows", "views", "licence of the texts"),
            [
                (
                    one.name,
                    one.digest[:12],
                    f"{one.rows:,}",
                    ", ".join(one.views) or "none",
                    one.licence or _UNKNOWN,
                )
                for one in selection.corpora
            ],
        )
    else:
        lines.append("No texts were pushed: the vectors serve whoever has the same texts.")
    shards = sum(file.entry.kind is Kind.SHARD for file in files)
    lines += [
        "",
        "## Checks",
        "",
        f"- The SHA-256 of every file was taken before it was sent or listed (files: {len(files):,}).",
        f"- Every shard was opened and belongs to its teacher's contract (shards: {shards:,}).",
        "- Vectors were not compared with the live teacher; 'embedcache verify --deep' does.",
    ]
    return "\n".join(lines) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    return lines + [f"| {' | '.join(map(_plain, row))} |" for row in rows]


def _plain(text: str) -> str:
    """Return ``text`` without what Markdown or HTML would take for more than text."""
    for letter in "\\`*_[]<>|#":
        text = text.replace(letter, f"\\{letter}")
    return text
