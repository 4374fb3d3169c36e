"""``distill recipes``."""

from __future__ import annotations

import click


@click.command("recipes")
@click.argument("name", required=False)
@click.option("--config", "config_only", is_flag=True, help="Print the configuration alone, for --config.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def recipes_command(name: str | None, config_only: bool, as_json: bool) -> None:
    """List the recipes, or print the recipe NAME with the paper's figures and what it leaves open.

    A recipe is used with 'distill run --recipe NAME' or 'distill finetune --recipe NAME'; every setting of it
    can be overridden.
    """
    import json

    import yaml

    from distill.recipe import find_recipe, recipes

    if name is None:
        if config_only:
            raise click.UsageError("--config prints the configuration of one recipe: name it")
        _print_list(as_json)
        return
    if name not in recipes() and any(one.startswith(f"{name}/") for one in recipes()):
        _print_list(as_json, paper=name)
        return
    recipe = find_recipe(name)
    if as_json:
        shown = recipe.config if config_only else recipe.model_dump(mode="json")
        click.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    elif config_only:
        click.echo(yaml.safe_dump(recipe.config, sort_keys=False), nl=False)
    else:
        click.echo(recipe.to_yaml(), nl=False)


def _print_list(as_json: bool, paper: str = "") -> None:
    import json

    from rich.console import Console
    from rich.table import Table

    from distill.recipe import recipes

    shown = [one for one in recipes().values() if one.name.startswith(f"{paper}/" if paper else "")]
    if as_json:
        click.echo(json.dumps([one.model_dump(mode="json") for one in shown], indent=2, ensure_ascii=False))
        return
    table = Table(title="recipes", title_justify="left")
    for heading in ("--recipe", "command", "in the paper"):
        table.add_column(heading, no_wrap=heading != "in the paper")
    for one in shown:
        table.add_row(one.name, one.kind, one.about.table)
    Console(highlight=False).print(table)
