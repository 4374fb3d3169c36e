"""``embedcache ls``, ``info``, ``explain``, ``teachers`` and ``views``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from embedcache.cli.options import cache_option, json_option, named
from embedcache.cli.tables import cell, print_json, print_table, printable, shortened
from embedcache.progress import show_progress
from embedcache.sizes import size

if TYPE_CHECKING:
    from embedcache.explain import Explanation, TeacherMatch

# Columns of the tables that have too many for one line.
_LISTED = {
    "corpora": ("corpus", "rows", "duplicates", "bytes", "digest", "has_labels", "views"),
    "teachers": ("teacher", "contract", "vectors", "dimension", "codec", "store", "bytes", "identity"),
}


@click.command("teachers")
def teachers_command() -> None:
    """List the teachers that have a short name."""
    from embedcache.teacher.aliases import ALIASES

    rows = []
    for name, alias in ALIASES.items():
        prompts = repr(alias.prompt) if alias.prompt else ", ".join(alias.prompts)
        notes = (alias.note, "--trust-remote-code" if alias.needs_code else "")
        rows.append(
            (
                name,
                alias.model_id,
                alias.dimension,
                alias.pooling or "its own",
                prompts,
                size(alias.parameters * 2e6),
                alias.licence,
                "; ".join(filter(None, notes)),
            )
        )
    columns = ("name", "model id", "width", "pooling", "prompts", "in bfloat16", "licence", "note")
    print_table(columns, rows)


@click.command("views")
def views_command() -> None:
    """List the kinds of views that 'build --view' makes."""
    from embedcache.views.recipe import KINDS

    rows = []
    for name, kind in KINDS.items():
        defaults = ((key, "..." if value is None else value) for key, value in kind.arguments.items())
        arguments = ", ".join(f"{key}={value}" for key, value in defaults)
        rows.append((name, kind.summary, f"--view {kind.example}", arguments))
    print_table(("kind", "texts", "example", "arguments"), rows)
    click.echo("'crop*4' makes four random samples; 'NAME=crop' names a view.")


@click.command("ls")
@cache_option
@json_option
def ls_command(cache: str, as_json: bool) -> None:
    """List the corpora and teachers of a cache."""
    from embedcache.cache import Cache
    from embedcache.info import list_contents

    found = list_contents(Cache(cache))
    if as_json:
        print_json(found)
    elif not any(found.values()):
        click.echo(f"{cache}: no corpus and no teacher. Run 'embedcache build'.")
    else:
        for title, rows in found.items():
            _print_rows(title, rows, _LISTED[title])


@click.command("info")
@click.argument("name", required=False)
@cache_option
@json_option
def info_command(name: str | None, cache: str, as_json: bool) -> None:
    """Describe a corpus or teacher, or the whole cache: contents, lengths, duplicates, labels, coverage."""
    from embedcache.cache import Cache
    from embedcache.info import describe

    with show_progress() as progress:
        found = describe(Cache(cache), name, progress)
    if as_json:
        print_json(found)
        return
    for title, rows in found.items():
        if name is not None and title in _LISTED:
            for row in rows:
                facts = [(key, text) for key, value in row.items() if (text := _cell(key, value))]
                print_table(("", ""), facts, title)
        elif rows:
            _print_rows(title, rows, _LISTED.get(title, tuple(rows[0])))


def _print_rows(title: str, rows: Sequence[Mapping[str, object]], wanted: Sequence[str]) -> None:
    columns = [column for column in wanted if rows and column in rows[0]]
    cells = [[_cell(column, row[column]) for column in columns] for row in rows]
    print_table([column.replace("_", " ") for column in columns], cells, title)


def _cell(column: str, value: object) -> object:
    """Return a readable value: sizes with units, short digests, no brackets."""
    if column in ("bytes", "token_embeddings") and isinstance(value, int):
        return size(value)
    if column in ("digest", "contract"):
        return str(value)[:12]
    if isinstance(value, float):
        return f"{value:,.1f}" if value > 1 else f"{value:.6f}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {cell(one)}" for name, one in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value


@click.command("explain")
@click.argument("text")
@named("--teacher", "SPEC", "Teacher asked for: its name, alias, hub id or folder.")
@cache_option
@json_option
def explain_command(text: str, teacher: str | None, cache: str, as_json: bool) -> None:
    """Explain whether TEXT has vectors, and if not, why.

    With --teacher, teachers of the cache are compared with the contract that a build with it would have.
    """
    from embedcache.cache import Cache
    from embedcache.explain import explain

    with show_progress() as progress:
        found = explain(Cache(cache), text, teacher, progress)
    if as_json:
        print_json(found)
        return
    _print_teachers(found.teachers)
    click.echo("\n  ".join(_text_lines(found)))


def _print_teachers(teachers: Iterable[TeacherMatch]) -> None:
    from embedcache.contract import describe_differences

    columns = ("teacher", "contract", "codec", "shard", "tokens", "truncated", "other than asked for")
    rows = [
        (
            one.name,
            one.contract_id[:12],
            one.codec,
            one.shard and one.shard[:12],
            one.tokens or None,
            one.truncated if one.codec else None,
            describe_differences(one.differences),
        )
        for one in teachers
    ]
    print_table(columns, rows, "teachers")


def _text_lines(found: Explanation) -> Iterator[str]:
    others = any(one.codec for one in found.teachers)
    state = "cached" if found.cached else "cached by another teacher only" if others else "not cached"
    yield f"'{printable(shortened(found.text, 80))}': {state}"
    for place in found.rows:
        where = f"{place.corpus}/{place.view}" if place.view else place.corpus
        more = place.count - len(place.first_rows)
        rows = ", ".join(map(str, place.first_rows))
        yield f"corpus {where}: row {rows}{f' and {more:,} more' if more > 0 else ''}"
    if not found.rows:
        yield "in no corpus: 'embedcache build' of a file that has it adds it"
    for near in found.near:
        yield f"similar in corpus {near.corpus}: row {near.row}, '{printable(near.text)}'"
