"""``distill data``: what evaluation suites read, fetched from pinned sources, and what to learn from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from embedcache.sizes import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from distill.evaluation.fetch import Fetched, Table


@click.group("data")
def data_command() -> None:
    """List and fetch the files that evaluation suites read; take from them what may be learnt from."""


@data_command.command("list")
@click.argument("suite", required=False)
@click.option("--urls", is_flag=True, help="Print the addresses alone, one in each line.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(suite: str | None, urls: bool, as_json: bool) -> None:
    """List the files that can be fetched, of SUITE or of all suites: rows, how they are checked, source.

    'digest' means that what comes is held against a digest known beforehand, 'first use' that the first fetch
    is trusted and later ones are held against it.
    """
    import json

    from distill.evaluation.fetch import fetchable_suites, tables_of

    if urls and as_json:
        raise click.UsageError("--urls prints plain lines: give either it or --json")
    suites = {name: tables_of(name) for name in ([suite] if suite else fetchable_suites())}
    if urls:
        for url in dict.fromkeys(
            url for tables in suites.values() for table in tables for url in table.urls()
        ):
            click.echo(url)
    elif as_json:
        facts = {
            name: [{**table.model_dump(mode="json"), "rows": table.rows} for table in tables]
            for name, tables in suites.items()
        }
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        _print_list(suites)


@data_command.command("fetch")
@click.argument("suite")
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder to write; 'distill eval --data' reads it.",
)
@click.option("--only", multiple=True, metavar="FILE", help="A file of the suite; repeat for several.")
@click.option(
    "--downloads",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder of downloads as HOST/PATH: what lies there is not downloaded, what does not is kept there.",
)
@click.option("--force", is_flag=True, help="Fetch what is there as well, and replace it.")
@click.option(
    "--accept-changed", is_flag=True, help="Take content whose digest is not the expected one; recorded."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def fetch_command(
    suite: str,
    folder: Path,
    only: Sequence[str],
    downloads: Path | None,
    force: bool,
    accept_changed: bool,
    as_json: bool,
) -> None:
    """Fetch the files of SUITE and write them as 'distill eval' reads them.

    Files that are there already stay. The folder's SOURCES.json says where each is from, under which licence,
    and with which digests. Proxies are those of the environment (HTTPS_PROXY, NO_PROXY).
    """
    import json

    from distill.cli.ticker import watched
    from distill.errors import FetchError
    from distill.evaluation.fetch import fetch_suite, missing, tables_of

    tables = tables_of(suite)
    unknown = sorted(set(only) - {table.file for table in tables})
    if unknown:
        raise click.UsageError(
            f"{suite} has no {', '.join(unknown)}; there are {', '.join(table.file for table in tables)}"
        )
    tables = [table for table in tables if not only or table.file in only]
    _print_licences(tables if force else missing(tables, folder))
    with watched("bytes") as on_step:
        results = fetch_suite(
            suite,
            tables,
            folder,
            downloads=downloads,
            force=force,
            accept_changed=accept_changed,
            on_step=on_step,
        )
    if as_json:
        click.echo(json.dumps([_facts(one) for one in results], indent=2, ensure_ascii=False))
    else:
        _print_results(results)
    failed = [one for one in results if one.state == "failed"]
    if failed:
        raise FetchError(
            f"{len(failed)} of {len(results)} files could not be fetched; the same command goes on. Without "
            f"a network here: run 'distill data list {suite} --urls | wget -x -i -' in a folder on a machine "
            "that has one, and give that folder with --downloads"
        )


@data_command.command("pairs")
@click.argument("data", type=click.Path(path_type=Path, file_okay=False))
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="Folder to write pairs.tsv and texts.tsv to.",
)
def pairs_command(data: Path, folder: Path) -> None:
    """Write what may be learnt from the sets of the suite entities in DATA, which 'distill eval' then asks.

    pairs.tsv (anchor, positive), for 'distill finetune', has each query that is not of the split test with
    its entity. texts.tsv, for 'embedcache build', has these queries and the entities of all catalogues.
    """
    from distill.evaluation.entity_pairs import PAIRS, TEXTS, read_entity_pairs, write_entity_pairs

    found = read_entity_pairs(data)
    write_entity_pairs(found, folder)
    for name, counts in found.sets.items():
        told = {what: counts[what] for what in counts if what not in ("queries", "entities")}
        without = "; left out: " + ", ".join(f"{count:,} {what}" for what, count in told.items())
        click.echo(f"{name}: {counts['queries']:,} queries, {counts['entities']:,} entities{without}")
    click.echo(f"{folder / PAIRS}: {counted(len(found.pairs), 'pair')}")
    click.echo(f"{folder / TEXTS}: {counted(len(found.texts), 'text')}")


def _print_list(suites: dict[str, list[Table]]) -> None:
    width = max(len(table.file) for tables in suites.values() for table in tables)
    for name, tables in suites.items():
        click.echo(name)
        for (source, licence), group in _by_source(tables).items():
            click.echo(f"  {source}; licence: {licence}")
            for table in group:
                rows = "" if table.rows is None else f"{table.rows:,} rows"
                checked = "digest" if table.is_checked else "first use"
                click.echo(f"    {table.file:<{width}}  {rows:>12}  {checked:<9}  {table.set}")


def _print_licences(tables: Sequence[Table]) -> None:
    """Say, before anything is downloaded, what the sources say of its use."""
    for (source, licence), group in _by_source(tables).items():
        files = ", ".join(table.file for table in group)
        click.echo(f"{files}\n  from {source}\n  licence: {licence}", err=True)


def _by_source(tables: Sequence[Table]) -> dict[tuple[str, str], list[Table]]:
    groups: dict[tuple[str, str], list[Table]] = {}
    for table in tables:
        groups.setdefault((table.source, table.licence), []).append(table)
    return groups


def _print_results(results: Sequence[Fetched]) -> None:
    for one in results:
        click.echo(f"{one.table.file}: {_describe(one)}")


def _describe(one: Fetched) -> str:
    if one.state == "failed":
        return f"failed: {one.problem}"
    if one.record is None:
        return one.state
    dropped = "".join(f", {count:,} {reason} left out" for reason, count in one.record.dropped.items())
    told = f"{one.state}, {counted(one.record.rows, 'row')}{dropped}"
    if one.record.is_checked:
        return f"{told}; its digest was known beforehand"
    return f"{told}; sha256 {one.record.sha256}, trusted on first use"


def _facts(one: Fetched) -> dict[str, object]:
    return {
        "file": one.table.file,
        "state": one.state,
        "problem": one.problem or None,
        "record": None if one.record is None else one.record.model_dump(mode="json"),
    }
