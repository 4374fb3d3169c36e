"""``embedcache teachers`` and ``embedcache ls``."""

from __future__ import annotations

import sys

import click

# Wide enough for every name; at the 80 columns assumed of a pipe, names would be cut.
_WIDTH_WITHOUT_TERMINAL = 200


@click.command("teachers")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def teachers_command(as_json: bool) -> None:
    """List the teachers that have a short name."""
    import json
    from dataclasses import asdict

    from embedcache.teacher.aliases import ALIASES

    if as_json:
        click.echo(json.dumps({name: asdict(alias) for name, alias in ALIASES.items()}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("name", "model id", "width", "pooling", "licence", "note")
    for name, alias in ALIASES.items():
        prompt = f"prompt {alias.prompt!r}; " if alias.prompt else ""
        pooling = alias.pooling or alias.own_pooling
        cells = (name, alias.model_id, str(alias.dimension), pooling, alias.licence, prompt + alias.note)
        table.add_row(*(Text(cell) for cell in cells))
    Console(width=_width()).print(table)


@click.command("ls")
@click.option("--cache", required=True, metavar="DIR", help="The cache's folder.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def ls_command(cache: str, as_json: bool) -> None:
    """List the corpora and teachers of a cache."""
    import json

    from embedcache.cache import Cache
    from embedcache.cli.progress import size

    opened = Cache(cache)
    corpora = [
        {"name": c.name, "rows": len(c), "digest": c.info.digest[:12], "labels": c.info.has_labels}
        for c in opened.corpora()
    ]
    teachers = []
    for teacher in opened.teachers():
        store = opened.store(teacher.contract)
        teachers.append(
            {
                "name": teacher.name,
                "contract": teacher.contract.id[:12],
                "vectors": len(store),
                "width": teacher.contract.dimension,
                "codec": store.codec.name,
                "bytes": store.bytes_on_disk,
                "pooling": teacher.contract.pooling,
                "max_length": teacher.contract.max_length,
            }
        )
    if as_json:
        click.echo(json.dumps({"corpora": corpora, "teachers": teachers}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(width=_width())
    for title, entries in (("corpora", corpora), ("teachers", teachers)):
        table = Table(*(entries[0] if entries else ["none"]), title=title, title_justify="left")
        for entry in entries:
            cells = {k: size(v) if k == "bytes" and isinstance(v, int) else v for k, v in entry.items()}
            table.add_row(*(Text(f"{v:,}" if type(v) is int else str(v)) for v in cells.values()))
        console.print(table)


def _width() -> int | None:
    return None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL
