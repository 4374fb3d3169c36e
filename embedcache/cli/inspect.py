"""``embedcache ls``, ``info``, ``explain``, ``teachers`` and ``views``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from embedcache.cli.options import FORMATS, cache_option, json_option, setting_options

if TYPE_CHECKING:
    from embedcache.explain import Explanation, TextReport
    from embedcache.info import CorpusReport, Spread, TeacherReport

_SPREAD = ("least", "median", "mean", "95 %", "most")
_LONGEST_TEXT = 80


@click.command("teachers")
@json_option
def teachers_command(as_json: bool) -> None:
    """List the teachers that have a short name."""
    from embedcache.teacher.aliases import ALIASES

    if as_json:
        _print_json(ALIASES)
        return
    from embedcache.cli.tables import print_table

    rows = []
    for name, alias in ALIASES.items():
        note = f"prompt {alias.prompt!r}; {alias.note}" if alias.prompt else alias.note
        pooling = alias.pooling or alias.own_pooling
        rows.append((name, alias.model_id, str(alias.dimension), pooling, alias.licence, note))
    print_table(("name", "model id", "width", "pooling", "licence", "note"), rows)


@click.command("views")
@json_option
def views_command(as_json: bool) -> None:
    """List the kinds of views that 'build --view' makes."""
    from embedcache.views.recipe import KINDS

    if as_json:
        _print_json(KINDS)
        return
    from embedcache.cli.tables import print_table

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
        _print_json({"corpora": corpora, "teachers": teachers})
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
    from embedcache.cli.progress_bar import show_progress
    from embedcache.info import describe

    with show_progress() as progress:
        found = describe(Cache(cache), name, progress)
    if as_json:
        _print_json(found)
        return
    _print_corpora(found.corpora)
    _print_teachers(found.teachers)
    if name is not None:
        for corpus in found.corpora:
            _print_corpus(corpus)
        for teacher in found.teachers:
            _print_teacher(teacher)


def _print_corpora(corpora: Sequence[CorpusReport]) -> None:
    rows = [
        (one.name, f"{one.rows:,}", f"{one.duplicates:,}", _size(one.bytes), *_spread(one.characters))
        for one in corpora
    ]
    _table("corpora, characters a text", ("corpus", "rows", "duplicates", "size", *_SPREAD), rows)
    views = [
        (f"{one.name}/{view.name}", view.recipe, _counts(view.counts), "no" if view.is_stale else "yes")
        for one in corpora
        for view in one.views
    ]
    _table("views", ("view", "recipe", "rows", "current"), views)
    for one in corpora:
        labels = [(str(label), f"{rows:,}", f"{rows / one.rows:.2%}") for label, rows in one.labels]
        _table(f"labels of {one.name}: {one.distinct_labels:,}", ("label", "rows", "share"), labels)


def _print_teachers(teachers: Sequence[TeacherReport]) -> None:
    rows = [
        (one.line.name, _cell(one.line.vectors), f"{one.truncated:,}", *_spread(one.tokens))
        for one in teachers
    ]
    _table("teachers, tokens a text", ("teacher", "vectors", "truncated", *_SPREAD), rows)
    _print_lines("storage", [one.line for one in teachers])
    coverage = [
        (one.line.name, texts, f"{found:,} of {rows:,}", f"{found / rows:.2%}")
        for one in teachers
        for texts, (found, rows) in one.coverage.items()
    ]
    _table("coverage", ("teacher", "corpus", "rows with a vector", "share"), coverage)


def _print_corpus(one: CorpusReport) -> None:
    facts = {"digest": one.digest, "parts": one.parts, "columns": ", ".join(one.columns)}
    facts |= {"skipped": _counts(one.skipped), "read from": ", ".join(one.read_from)}
    _table(f"corpus {one.name}", ("", ""), _facts(facts))


def _print_teacher(one: TeacherReport) -> None:
    facts = {"contract": one.id, "also called": ", ".join(one.also_called), "shards": one.shards}
    origin = {f"origin: {name}": value for name, value in one.origin.items()}
    _table(f"teacher {one.line.name}", ("", ""), _facts({**facts, **one.contract, **origin}))
    codecs = [(name, *(_cell(value) for value in row.values())) for name, row in one.codecs.items()]
    _table("codecs", ("codec", "rows", "mean cosine", "worst cosine"), codecs)
    ways = [
        (f"{way['rows']:,}", _counts({k: v for k, v in way.items() if k != "rows"})) for way in one.provenance
    ]
    _table("provenance", ("rows", "computed with"), ways)


def _print_lines(title: str, lines: Iterable[Any]) -> None:
    from dataclasses import asdict

    entries = [asdict(line) for line in lines]
    names = [name for name in (entries[0] if entries else {}) if name != "damage"]
    rows = [
        [_size(one[n]) if n in ("bytes", "token_embeddings") else _cell(one[n]) for n in names]
        for one in entries
    ]
    _table(title, [name.replace("_", " ") for name in names], rows)
    for entry in entries:
        if entry.get("damage"):
            click.echo(f"{entry['name']}: {entry['damage']}")


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from embedcache.cli.tables import print_table

    if rows:
        print_table(columns, rows, title)


def _facts(values: Mapping[str, object]) -> list[tuple[str, str]]:
    return [
        (name.replace("_", " "), _cell(value)) for name, value in values.items() if value not in (None, "")
    ]


def _counts(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {_cell(value)}" for name, value in values.items())


def _spread(spread: Spread | None) -> tuple[str, ...]:
    if spread is None:
        return ("-",) * len(_SPREAD)
    return tuple(f"{n:,.1f}" if isinstance(n, float) else f"{n:,}" for n in vars(spread).values())


def _size(count: int | None) -> str:
    from embedcache.cli.tables import size

    return "-" if count is None else size(count)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _print_json(value: Any) -> None:
    import json
    from dataclasses import asdict

    click.echo(json.dumps(value, indent=2, ensure_ascii=False, default=asdict))


@click.command("explain")
@click.argument("text", required=False)
@click.option("--file", "file", metavar="FILE", help="Look up the texts of FILE, or - for standard input.")
@click.option("--text-column", metavar="NAME", help="Column of the text in FILE.")
@click.option("--text2-column", metavar="NAME", help="Column of the second text of pairs in FILE.")
@click.option("--format", "file_format", type=click.Choice(FORMATS), help="Format of FILE.")
@click.option("--teacher", metavar="SPEC", help="Teacher asked for: its name, alias, hub id or folder.")
@setting_options
@cache_option
@json_option
def explain_command(
    text: str | None,
    file: str | None,
    text_column: str | None,
    text2_column: str | None,
    file_format: str | None,
    teacher: str | None,
    cache: str,
    as_json: bool,
    **settings: Any,
) -> None:
    """Explain whether TEXT, or the texts of a file, have vectors, and if not, why.

    With --teacher or a setting, teachers of the cache are compared with the contract that a build would have.
    """
    from embedcache.cache import Cache
    from embedcache.cli.progress_bar import show_progress
    from embedcache.corpus.readers import ReadOptions
    from embedcache.explain import explain, wanted_contract

    if (text is None) == (file is None):
        raise click.UsageError("expected TEXT or --file FILE")
    opened, wanted = Cache(cache), None
    given = [name for name, value in settings.items() if value is not None and name != "trust_remote_code"]
    if teacher is not None or given:
        wanted = wanted_contract(opened, teacher, **settings)
    options = ReadOptions(text_column, format=file_format, text2_column=text2_column)
    with show_progress() as progress:
        batches = [[text]] if text is not None else _texts_of(str(file), options)
        found = explain(opened, batches, wanted, progress)
    if as_json:
        _print_json(found)
    else:
        _print_explanation(found)


def _texts_of(file: str, options: Any) -> Iterator[list[str]]:
    from embedcache.corpus.readers import ReadReport, read_batches
    from embedcache.corpus.sources import expand_sources

    return (batch.texts for batch in read_batches(expand_sources([file]), options, ReadReport()))


def _print_explanation(found: Explanation) -> None:
    from embedcache.contract import describe_differences

    rows = [
        (
            one.name,
            one.contract_id[:12],
            f"{one.cached:,} of {found.rows:,}",
            f"{one.truncated:,}",
            describe_differences(one.differences),
        )
        for one in found.teachers
    ]
    columns = ("teacher", "contract", "rows with a vector", "truncated", "differs from the one asked for in")
    _table("teachers", columns, rows)
    if not rows:
        click.echo("the cache has no teacher")
    for text in found.texts:
        for line in _text_lines(text):
            click.echo(line)


def _text_lines(one: TextReport) -> Iterator[str]:
    from embedcache.cli.tables import printable

    shown = one.text if len(one.text) <= _LONGEST_TEXT else f"{one.text[:_LONGEST_TEXT]}…"
    yield f"'{printable(shown)}': {'cached' if one.cached else 'not cached'}"
    for row in one.stored:
        tokens = f", {row.tokens} tokens{' (truncated)' if row.truncated else ''}" if row.tokens else ""
        yield f"  teacher {row.teacher}: {row.codec} in shard {row.shard[:12]}{tokens}"
    for place in one.rows:
        where = f"{place.corpus}/{place.view}" if place.view else place.corpus
        rows = ", ".join(map(str, place.first_rows))
        more = (
            f" and {place.count - len(place.first_rows):,} more"
            if place.count > len(place.first_rows)
            else ""
        )
        yield f"  corpus {where}: row {rows}{more}"
    if not one.rows:
        yield "  in no corpus"
    for near in one.near:
        yield f"  similar in corpus {near.corpus}: row {near.row}, '{printable(near.text)}'"
