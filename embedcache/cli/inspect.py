"""``embedcache teachers``, ``ls`` and ``info``."""

from __future__ import annotations

from collections.abc import Mapping

import click

from embedcache.cli.options import cache_option, json_option

# Of a teacher whose LMDB file is gone these cannot be told.
_MEASURED = ("vectors", "codec", "bytes")


@click.command("teachers")
@json_option
def teachers_command(as_json: bool) -> None:
    """List the teachers that have a short name."""
    import json
    from dataclasses import asdict

    from embedcache.teacher.aliases import ALIASES

    if as_json:
        click.echo(json.dumps({name: asdict(alias) for name, alias in ALIASES.items()}, indent=2))
        return
    from embedcache.cli.tables import print_table

    rows = []
    for name, alias in ALIASES.items():
        prompt = f"prompt {alias.prompt!r}; " if alias.prompt else ""
        pooling = alias.pooling or alias.own_pooling
        rows.append((name, alias.model_id, str(alias.dimension), pooling, alias.licence, prompt + alias.note))
    print_table(("name", "model id", "width", "pooling", "licence", "note"), rows)


@click.command("ls")
@cache_option
@json_option
def ls_command(cache: str, as_json: bool) -> None:
    """List the corpora and teachers of a cache."""
    import json
    from dataclasses import asdict

    from embedcache.cache import Cache
    from embedcache.cli.tables import print_table
    from embedcache.describe import summarize_corpus, summarize_teacher

    opened = Cache(cache)
    found = {
        "corpora": [asdict(summarize_corpus(corpus)) for corpus in opened.corpora()],
        "teachers": [asdict(summarize_teacher(opened, teacher)) for teacher in opened.teachers()],
    }
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for title, entries in found.items():
        shown = [{name: value for name, value in entry.items() if name != "damage"} for entry in entries]
        rows = [[_cell(name, value) for name, value in entry.items()] for entry in shown]
        print_table(list(shown[0]) if shown else ["none"], rows, title)
    for entry in found["teachers"]:
        if entry["damage"] is not None:
            click.echo(f"{entry['name']}: {entry['damage']}")


@click.command("info")
@click.argument("name")
@cache_option
@json_option
def info_command(name: str, cache: str, as_json: bool) -> None:
    """Tell everything about NAME, a teacher or a corpus of a cache."""
    import json

    from embedcache.cache import Cache
    from embedcache.cli.tables import print_table
    from embedcache.describe import describe_corpus, describe_teacher
    from embedcache.errors import InputError

    opened = Cache(cache)
    found: dict[str, dict[str, object]] = {}
    if name in opened.corpus_names():
        found["corpus"] = describe_corpus(opened, opened.corpus(name))
    names = {teacher.name for teacher in opened.teachers()}
    if name in names or not found:
        try:
            found["teacher"] = describe_teacher(opened, opened.teacher(name))
        except InputError as error:
            corpora = ", ".join(opened.corpus_names()) or "none"
            raise InputError(f"{error}; corpora: {corpora}") from error
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for title, entry in found.items():
        print_table(("", title), [(key, _cell(key, value)) for key, value in entry.items()])


def _cell(name: str, value: object) -> str:
    from embedcache.cli.tables import size

    if value is None and name in _MEASURED:
        return "unknown"
    if name in ("bytes", "token_embeddings") and isinstance(value, int):
        return size(value)
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {_cell(str(key), inner)}" for key, inner in value.items()) or "none"
    if isinstance(value, list):
        return "\n".join(_cell("", inner).replace("\n", ", ") for inner in value) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6f}"
    return "none" if value is None or value == "" else str(value)
