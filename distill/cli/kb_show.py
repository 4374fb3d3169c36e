"""What the commands of ``distill kb`` print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from embedcache.sizes import counted

if TYPE_CHECKING:
    from distill.knowledge_base.build import Built
    from distill.knowledge_base.choose import Choice
    from distill.knowledge_base.header import Header


def show_choice(choice: Choice, *, table: bool) -> None:
    """Print a choice of k and beta, what it rests on, and the table over k where it is wanted."""
    chosen = choice.chosen
    left = f"; {choice.in_base:,} others stand in the base" if choice.in_base else ""
    click.echo(
        f"k {chosen.k}, beta {chosen.beta:g}: {100 * chosen.accuracy:.2f} % right on {chosen.rows:,} "
        f"{chosen.source}{left}; without retrieval {100 * chosen.without:.2f} %"
    )
    if chosen.beta == 1:
        click.echo("neighbours do not help on these rows: predictions are those of the student alone")
    elif chosen.lead is not None:
        lead = 100 * (chosen.accuracy - chosen.without)
        click.echo(
            f"a lead of {lead:.2f} points over the student alone (95 % interval {_signed(chosen.lead)})"
        )
        if chosen.is_within_chance:
            click.echo(
                "note: chance alone may have made this lead, which is the best of many on these rows: expect "
                "none on others, or choose on more rows"
            )
    _show_asked(choice)
    if table:
        _show_table(choice)


def _show_asked(choice: Choice) -> None:
    asked = choice.asked
    click.echo(
        f"of the {asked.recall.k} nearest to the student's vectors the graph finds "
        f"{100 * asked.recall.recall:.1f} %: with exact search {100 * asked.exact_accuracy:.2f} % are right, "
        f"and neighbours vote for another label for {asked.other_votes:,} of {asked.recall.queries:,} rows"
    )
    if asked.loses_much:
        click.echo("note: the neighbours that it misses would help: build the base with a larger --ef-search")


def describe_chosen(header: Header) -> str:
    """Return in words which k and beta a base has, and what they were chosen on."""
    chosen = header.chosen
    if chosen is None:
        return "not chosen yet ('distill kb tune')"
    grown = f", when it had {chosen.base_rows:,} rows" if chosen.base_rows != header.rows else ""
    return (
        f"{chosen.k} and {chosen.beta:g}, chosen on {chosen.rows:,} {chosen.source}{grown}: "
        f"{100 * chosen.accuracy:.2f} % right, without retrieval {100 * chosen.without:.2f} %"
        + (", a lead that chance alone may have made" if chosen.is_within_chance else "")
    )


def _signed(interval: tuple[float, float]) -> str:
    return " to ".join(f"{100 * end:+.2f}" for end in interval)


def show_built(built: Built, as_json: bool) -> None:
    """Print what was put into a base, and how long its searches have to be."""
    counts = {
        "added": built.added,
        "repeated": built.repeated,
        "held_out": built.held_out,
        "known": built.known,
    }
    if as_json:
        effort = {"recall": built.effort.recall} if built.effort is not None else {}
        before = {"replaced": built.replaced.facts()} if built.replaced is not None else {}
        facts: dict[str, Any] = {"folder": str(built.folder), **counts, **effort, **before}
        facts |= built.base.facts()
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    words = {"repeated": "of a text that stands earlier", "held_out": "held out", "known": "in it already"}
    left = ", ".join(f"{counts[name]:,} {what}" for name, what in words.items() if counts[name])
    click.echo(
        f"{counted(built.added, 'row')} added to {built.folder}, which has {len(built.base):,} now"
        + (f"; left out: {left}" if left else "")
    )
    if built.replaced is not None:
        click.echo(_replaced(built.replaced))
    if built.effort is not None:
        click.echo(
            f"searches look at {built.effort.ef_search} candidates and find "
            f"{100 * built.effort.recall:.1f} % of the ten nearest to the teacher's vectors of rows held out"
        )
    elif built.base.index.settings.is_settled:
        click.echo(
            f"ef-search {built.base.index.settings.ef_search} was not measured on these rows: the cache has "
            "vectors of too few rows that were held out"
        )


def _replaced(before: Header) -> str:
    """Return in words what went with a base in whose place another was put."""
    corpora = ", ".join(str(corpus["name"]) for corpus in before.corpora)
    texts = ", with their texts" if before.has_texts else ""
    told = f"the base that was there is gone: {counted(before.rows, 'row')} ({corpora}){texts}"
    if before.chosen is None:
        return told
    return f"{told}, k {before.chosen.k} and beta {before.chosen.beta:g}: choose anew with 'distill kb tune'"


def _table_rows(choice: Choice) -> list[dict[str, str]]:
    return [
        {
            "k": str(row.k) if row.k else "no retrieval",
            "accuracy": f"{100 * row.accuracy:.2f}",
            "lead": _signed(row.lead) if row.k else "",
            "best_beta": f"{row.best_beta:g}",
            "best_accuracy": f"{100 * row.best_accuracy:.2f}",
            "seconds": f"{row.seconds:.3f}" if not row.k else f"+{row.seconds:.4f}",
            "added": f"{100 * row.added:.2f} %" if row.k else "",
        }
        for row in choice.table
    ]


def _show_table(choice: Choice) -> None:
    from embedcache.cli.tables import print_table

    right = f"% right, beta {choice.chosen.beta:g}"
    heads = ("k", right, "lead, 95 %", "its best beta", "% right", "s", "of the student")
    title = f"{choice.chosen.rows:,} {choice.chosen.source}"
    print_table(heads, [list(row.values()) for row in _table_rows(choice)], title=title)


def write_table(choice: Choice, out: Path) -> None:
    """Write the table over k as TSV, or all of a choice as JSON."""
    from embedcache.fsio import write_bytes, write_json

    if out.suffix == ".json":
        write_json(out, choice.to_json())
        return
    rows = _table_rows(choice)
    lines = ["\t".join(rows[0]), *("\t".join(row.values()) for row in rows)]
    write_bytes(out, "".join(f"{line}\n" for line in lines).encode())
