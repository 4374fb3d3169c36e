"""``embedcache ls``, ``info``, ``explain``, ``teachers`` and ``views``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import cache_option, json_option, named
from embedcache.cli.progress import show_progress
from embedcache.cli.tables import cell, print_json, print_table, printable, shortened, size

if TYPE_CHECKING:
    from embedcache.explain import Explanation, TextReport
    from embedcache.info import CacheReport, CorpusReport, Spread, TeacherReport

_SPREAD = ("least", "median", "mean", "95 %", "most")


@click.command("teachers")
def teachers_command() -> None:
    """List the teachers that have a short name."""
    from embedcache.teacher.aliases import ALIASES

    rows = []
    for name, alias in ALIASES.items():
        note = f"prompt {alias.prompt!r}; {alias.note}" if alias.prompt else alias.note
        pooling = alias.pooling or alias.own_pooling
        rows.append((name, alias.model_id, alias.dimension, pooling, alias.licence, note))
    print_table(("name", "model id", "width", "pooling", "licence", "note"), rows)


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
    from embedcache.info import CorpusLine, TeacherLine

    opened = Cache(cache)
    corpora = [CorpusLine.of(corpus) for corpus in opened.corpora()]
    teachers = [TeacherLine.of(opened, teacher) for teacher in opened.teachers()]
    if as_json:
        print_json({"corpora": corpora, "teachers": teachers})
        return
    _print_lines("corpora", corpora)
    _print_lines("teachers", teachers)


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
    _print_report(found)
    for corpus in found.corpora if name is not None else ():
        _print_corpus(corpus)
    for teacher in found.teachers if name is not None else ():
        _print_teacher(teacher)


def _print_report(found: CacheReport) -> None:
    corpora = [
        (one.name, one.rows, one.duplicates, size(one.bytes), *_spread(one.characters))
        for one in found.corpora
    ]
    print_table(("corpus", "rows", "duplicates", "size", *_SPREAD), corpora, "corpora, characters a text")
    views = [
        (f"{one.name}/{view.name}", view.recipe, _counts(view.counts), not view.is_stale)
        for one in found.corpora
        for view in one.views
    ]
    print_table(("view", "recipe", "rows", "current"), views, "views")
    for one in found.corpora:
        labels = [(str(label), rows, f"{rows / one.rows:.2%}") for label, rows in one.labels]
        print_table(("label", "rows", "share"), labels, f"labels of {one.name}: {one.distinct_labels:,}")
    teachers = [
        (one.line.name, one.line.vectors, one.truncated, *_spread(one.tokens)) for one in found.teachers
    ]
    print_table(("teacher", "vectors", "truncated", *_SPREAD), teachers, "teachers, tokens a text")
    _print_lines("storage", [one.line for one in found.teachers])
    coverage = [
        (one.line.name, texts, f"{covered:,} of {rows:,}", f"{covered / rows:.2%}")
        for one in found.teachers
        for texts, (covered, rows) in one.coverage.items()
    ]
    print_table(("teacher", "corpus", "rows with a vector", "share"), coverage, "coverage")


def _print_corpus(one: CorpusReport) -> None:
    facts = {"digest": one.digest, "parts": one.parts, "columns": ", ".join(one.columns)}
    facts |= {"skipped": _counts(one.skipped), "read from": ", ".join(one.read_from)}
    _print_facts(f"corpus {one.name}", facts)


def _print_teacher(one: TeacherReport) -> None:
    facts = {"contract": one.id, "also called": ", ".join(one.also_called), "shards": one.shards}
    origin = {f"origin: {name}": value for name, value in one.origin.items()}
    _print_facts(f"teacher {one.line.name}", {**facts, **one.contract, **origin})
    codecs = [(name, *row.values()) for name, row in one.codecs.items()]
    print_table(("codec", "rows", "mean cosine", "worst cosine"), codecs, "codecs")
    ways = [(way["rows"], _counts({k: v for k, v in way.items() if k != "rows"})) for way in one.provenance]
    print_table(("rows", "computed with"), ways, "provenance")


def _print_lines(title: str, lines: Iterable[Any]) -> None:
    entries = [asdict(line) for line in lines]
    damage = {entry["name"]: text for entry in entries if (text := entry.pop("damage", None))}
    for entry in entries:
        sizes = {"bytes", "token_embeddings"} & entry.keys()
        entry |= {name: size(entry[name]) for name in sizes if entry[name] is not None}
    columns = [name.replace("_", " ") for name in (entries[0] if entries else ())]
    print_table(columns, [list(entry.values()) for entry in entries], title)
    for name, text in damage.items():
        click.echo(f"{name}: {text}")


def _print_facts(title: str, facts: Mapping[str, object]) -> None:
    rows = [(name.replace("_", " "), value) for name, value in facts.items() if value not in (None, "")]
    print_table(("", ""), rows, title)


def _counts(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {cell(value)}" for name, value in values.items())


def _spread(spread: Spread | None) -> list[object]:
    if spread is None:
        return [None] * len(_SPREAD)
    return [f"{n:,.1f}" if isinstance(n, float) else n for n in vars(spread).values()]


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
    from embedcache.explain import explain, wanted_contract

    opened = Cache(cache)
    wanted = None if teacher is None else wanted_contract(opened, teacher)
    with show_progress() as progress:
        found = explain(opened, [[text]], wanted, progress)
    if as_json:
        print_json(found)
    else:
        _print_explanation(found)


def _print_explanation(found: Explanation) -> None:
    from embedcache.contract import describe_differences

    rows = [
        (
            one.name,
            one.contract_id[:12],
            f"{one.cached:,} of {found.rows:,}",
            one.truncated,
            describe_differences(one.differences),
        )
        for one in found.teachers
    ]
    columns = ("teacher", "contract", "rows with a vector", "truncated", "differs from the one asked for in")
    print_table(columns, rows, "teachers")
    if not rows:
        click.echo("the cache has no teacher")
    for text in found.texts:
        click.echo("\n  ".join(_text_lines(text)))


def _text_lines(one: TextReport) -> Iterator[str]:
    yield f"'{printable(shortened(one.text, 80))}': {'cached' if one.cached else 'not cached'}"
    for row in one.stored:
        tokens = f", {row.tokens} tokens{' (truncated)' if row.truncated else ''}" if row.tokens else ""
        yield f"teacher {row.teacher}: {row.codec} in shard {row.shard[:12]}{tokens}"
    for place in one.rows:
        where = f"{place.corpus}/{place.view}" if place.view else place.corpus
        more = place.count - len(place.first_rows)
        rows = ", ".join(map(str, place.first_rows))
        yield f"corpus {where}: row {rows}{f' and {more:,} more' if more > 0 else ''}"
    if not one.rows:
        yield "in no corpus"
    for near in one.near:
        yield f"similar in corpus {near.corpus}: row {near.row}, '{printable(near.text)}'"
