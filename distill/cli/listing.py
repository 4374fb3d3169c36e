"""``distill list``: losses, recipes, suites and students."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

Table = tuple[Sequence[str], Sequence[Sequence[str]], Any]
"""Headings, rows, and the same as JSON."""


@click.command("list")
@click.argument("kind", type=click.Choice(["losses", "recipes", "suites", "students"]))
@click.argument("name", required=False)
@click.option("--config", "config_only", is_flag=True, help="Of one recipe: its configuration, for --config.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(kind: str, name: str | None, config_only: bool, as_json: bool) -> None:
    """List losses, recipes, suites or students, or show the one called NAME.

    A loss is chosen with --loss NAME, its settings are set with --set loss.SETTING=VALUE. A recipe is used
    with --recipe NAME; all other settings win over it.
    """
    if config_only and (kind != "recipes" or name is None):
        raise click.UsageError("--config is for one recipe: distill list recipes NAME --config")
    if kind == "recipes" and name is not None and _show_recipe(name, config_only, as_json):
        return
    tables: dict[str, Callable[[], Table]] = {
        "losses": _losses,
        "recipes": _recipes,
        "suites": _suites,
        "students": _students,
    }
    headings, rows, facts = tables[kind]()
    if name is not None:
        prefix = f"{name}/" if kind == "recipes" else name
        rows = [row for row in rows if row[0].startswith(prefix)]
        facts = {key: value for key, value in facts.items() if key.startswith(prefix)}
        if not rows:
            raise click.UsageError(f"no {name!r} among the {kind}; 'distill list {kind}' shows all")
    if as_json:
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    _print(kind, headings, rows)


def _show_recipe(name: str, config_only: bool, as_json: bool) -> bool:
    """Print one recipe; return False if ``name`` is a paper, which has several."""
    import yaml

    from distill.config.recipes import find_recipe, recipes

    if any(one.startswith(f"{name}/") for one in recipes()):
        return False
    recipe = find_recipe(name)
    if as_json:
        facts = recipe.config if config_only else recipe.model_dump(mode="json")
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        text = yaml.safe_dump(recipe.config, sort_keys=False) if config_only else recipe.to_yaml()
        click.echo(text, nl=False)
    return True


def _losses() -> Table:
    from distill.losses.registry import get_loss, loss_names

    rows, facts = [], {}
    for name in loss_names():
        loss = get_loss(name)
        defaults, helps = loss.defaults, loss.help
        queue = {None: [], True: ["the queue starts full"], False: ["the queue starts empty"]}[
            loss.full_queue
        ]
        more = [f"targets: {loss.targets}", *queue]
        more += [f"loss.{key}={defaults[key]}: {text}" for key, text in helps.items()]
        rows.append((name, str(loss.views), "\n".join([loss.summary, *(f"  {line}" for line in more)])))
        facts[name] = {
            "summary": loss.summary,
            "views": loss.views,
            "targets": loss.targets,
            "inside": loss.inside,
            "full_queue": loss.full_queue,
            "lr": loss.lr,
            "batch_size": loss.batch_size,
            "settings": {key: {"default": defaults[key], "help": text} for key, text in helps.items()},
        }
    return ("loss", "views", "comparison, targets and settings (--set)"), rows, facts


def _recipes() -> Table:
    from distill.config.recipes import recipes

    found = recipes()
    rows = [(one.name, one.kind, one.about.table) for one in found.values()]
    facts = {one.name: one.model_dump(mode="json") for one in found.values()}
    return ("recipe", "command", "table and row of the paper"), rows, facts


def _suites() -> Table:
    from distill.evaluation.task import suites

    rows, facts = [], {}
    for name, suite in suites().items():
        files = [f"{file.stem}.tsv: {', '.join(file.columns)}" for file in suite.files]
        rows.append((name, "\n".join([suite.summary, *(f"  {line}" for line in files)])))
        facts[name] = {"summary": suite.summary, "files": files}
    return ("suite", "measures; files of --data and their columns"), rows, facts


def _students() -> Table:
    from distill.students.spec import KINDS

    rows = [(name, f"{kind.form}\n  {kind.summary}") for name, kind in KINDS.items()]
    facts = {name: {"form": kind.form, "summary": kind.summary} for name, kind in KINDS.items()}
    return ("student", "form of --student"), rows, facts


def _print(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(title=title, title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, no_wrap=number < len(headings) - 1, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)
