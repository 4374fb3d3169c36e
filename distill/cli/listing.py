"""``distill list``: losses, recipes, suites and students."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

ROWS = "other rows of the papers' tables"

Entry = tuple[str, Sequence[str], dict[str, Any]]
"""Name, lines of the table, and the same as JSON."""


@click.command("list")
@click.argument("kind", type=click.Choice(["losses", "recipes", "suites", "students"]))
@click.argument("name", required=False)
@click.option("--config", "config_only", is_flag=True, help="Of one recipe: its configuration, for --config.")
@click.option("--all", "every", is_flag=True, help="Also recipes that need a hub or a GPU, and other rows.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(kind: str, name: str | None, config_only: bool, every: bool, as_json: bool) -> None:
    """List losses, recipes, suites or students, or show those whose name begins with NAME.

    A loss is chosen with --loss NAME, its settings are set with --set loss.SETTING=VALUE. A recipe is used
    with --recipe NAME; all other settings win over it. Only recipes that run on any machine are shown;
    --all shows every row of the papers' tables: how it runs, or why it does not.
    """
    from distill.config.recipes import EVERYWHERE, find_recipe, recipes

    kinds: dict[str, Callable[[], Iterator[Entry]]] = {
        "losses": _losses,
        "recipes": _recipes,
        "suites": _suites,
        "students": _students,
    }
    tables = {kind: list(kinds[kind]()), ROWS: list(_rows()) if kind == "recipes" else []}
    hidden = 0
    if kind == "recipes" and name is None and not every and not as_json:
        shown = [entry for entry in tables[kind] if entry[2]["status"] == EVERYWHERE]
        hidden = sum(map(len, tables.values())) - len(shown)
        tables = {kind: shown, ROWS: []}
    tables = {
        title: [entry for entry in entries if entry[0].startswith(name or "")]
        for title, entries in tables.items()
    }
    found = [entry for entries in tables.values() for entry in entries]
    if config_only or (kind == "recipes" and name in recipes()):
        recipe = find_recipe(name or "")
        _print_recipe(
            recipe.config if config_only else recipe.model_dump(mode="json", exclude_none=True), as_json
        )
    elif not found:
        raise click.UsageError(f"no {name!r} among the {kind}; 'distill list {kind}' shows all")
    elif as_json:
        click.echo(json.dumps({name: facts for name, _, facts in found}, indent=2, ensure_ascii=False))
    else:
        for title, entries in tables.items():
            if entries:
                _print(title, entries)
        if hidden:
            click.echo(f"{hidden} more need a hub or a GPU, or are no recipe: --all, or 'list recipes NAME'")


def _print_recipe(facts: dict[str, Any], as_json: bool) -> None:
    import yaml

    text = yaml.safe_dump(facts, sort_keys=False, allow_unicode=True, width=110)
    click.echo(json.dumps(facts, indent=2, ensure_ascii=False) if as_json else text.rstrip())


def _losses() -> Iterator[Entry]:
    from distill.losses.registry import get_loss, loss_names

    queues = {True: ["the queue starts full"], False: ["the queue starts empty"], None: []}
    for name in loss_names():
        loss = get_loss(name)
        defaults = loss.defaults
        lines = [loss.summary, f"views: {loss.views}", f"targets: {loss.targets}", *queues[loss.full_queue]]
        lines += [f"loss.{key}={defaults[key]}: {text}" for key, text in loss.help.items()]
        known = ("summary", "views", "targets", "inside", "full_queue", "lr", "batch_size")
        facts: dict[str, Any] = {key: getattr(loss, key) for key in known}
        facts["settings"] = {key: {"default": defaults[key], "help": text} for key, text in loss.help.items()}
        yield name, lines, facts


def _recipes() -> Iterator[Entry]:
    from distill.config.recipes import recipes

    for one in recipes().values():
        lines = [f"distill {one.kind}: {one.about.table}", one.status]
        yield one.name, lines, one.model_dump(mode="json")


def _rows() -> Iterator[Entry]:
    """Yield the rows of the papers' tables that are no recipe."""
    from distill.config.recipes import paper_rows, recipes

    for row in paper_rows():
        if row.how not in recipes():
            yield f"{row.paper}, {row.table}", [row.status, row.how], row.model_dump(mode="json")


def _suites() -> Iterator[Entry]:
    from distill.evaluation.task import suites

    for name, suite in suites().items():
        files = [f"{file.stem}.tsv: {', '.join(file.columns)}" for file in suite.files]
        yield name, [suite.summary, *files], {"summary": suite.summary, "files": files}


def _students() -> Iterator[Entry]:
    from distill.students.spec import KINDS

    for name, kind in KINDS.items():
        yield name, [kind.form, kind.summary], {"form": kind.form, "summary": kind.summary}


def _print(title: str, entries: Sequence[Entry]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_header=False)
    # Names of rows are sentences: they stand above what is said of them.
    if title != ROWS:
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, lines, _ in entries:
        cells = ["\n  ".join([name, *lines])] if title == ROWS else [name, "\n  ".join(lines)]
        table.add_row(*map(Text, cells))
    Console(highlight=False).print(table)
