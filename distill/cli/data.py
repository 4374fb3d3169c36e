"""``distill data``: list and fetch the files that suites read, and take training pairs from them."""

from __future__ import annotations

from pathlib import Path

import click

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.group("data")
def data_command() -> None:
    """List and fetch the files that evaluation suites read; take training pairs from them."""


@data_command.command("list")
@click.argument("suite", required=False)
@click.option("--urls", is_flag=True, help="Print the addresses alone, one a line.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_command(suite: str | None, urls: bool, as_json: bool) -> None:
    """List the files that can be fetched for SUITE, or for all suites: rows, check, set, source, licence.

    Checks: 'digest' is known beforehand; 'first use' trusts the first fetch and holds later ones against it.
    """
    import json

    from distill.evaluation.source_tables import fetchable_suites, tables_of

    suites = {name: tables_of(name) for name in ([suite] if suite else fetchable_suites())}
    if urls:
        click.echo(
            "\n".join(
                dict.fromkeys(url for tables in suites.values() for table in tables for url in table.urls())
            )
        )
    elif as_json:
        facts = {
            name: [{**table.model_dump(mode="json"), "rows": table.rows} for table in tables]
            for name, tables in suites.items()
        }
        click.echo(json.dumps(facts, indent=2, ensure_ascii=False))
    else:
        for name, tables in suites.items():
            click.echo(name)
            for table in tables:
                rows, check = table.rows or "?", "digest" if table.is_pinned else "first use"
                click.echo(f"  {table.file:<32} {rows:>7} rows  {check:<9}  {table.set}")
                click.echo(f"    {table.source}; licence: {table.licence}")


@data_command.command("fetch")
@click.argument("suite")
@click.option("--to", "folder", type=_FOLDER, required=True, help="Folder that 'distill eval --data' reads.")
@click.option("--only", multiple=True, metavar="FILE", help="Fetch this file of the suite; repeatable.")
@click.option("--downloads", type=_FOLDER, help="Use and keep downloads in this folder, as HOST/PATH.")
@click.option("--overwrite", is_flag=True, help="Replace files that are there.")
@click.option("--accept-changed", is_flag=True, help="Accept content whose digest is not the expected one.")
def fetch_command(
    suite: str,
    folder: Path,
    only: tuple[str, ...],
    downloads: Path | None,
    overwrite: bool,
    accept_changed: bool,
) -> None:
    """Fetch the files of SUITE into a folder that 'distill eval --data' reads.

    Files that are there stay. SOURCES.json in the folder records sources, licences and digests. Proxies are
    those of the environment (HTTPS_PROXY, NO_PROXY).
    """
    from distill.errors import FetchError
    from distill.evaluation.fetch import fetch_suite
    from distill.evaluation.source_tables import tables_of
    from embedcache.progress import show_progress

    tables = [table for table in tables_of(suite) if not only or table.file in only]
    if unknown := set(only) - {table.file for table in tables}:
        files = ", ".join(table.file for table in tables_of(suite))
        raise click.UsageError(f"{suite} has no {', '.join(sorted(unknown))}; choose from {files}")
    for source, licence in dict.fromkeys((table.source, table.licence) for table in tables):
        click.echo(f"{source}; licence: {licence}", err=True)
    with show_progress() as progress:
        results = fetch_suite(
            suite,
            folder,
            only=only,
            downloads=downloads,
            overwrite=overwrite,
            accept_changed=accept_changed,
            progress=progress,
        )
    for one in results:
        detail = f": {one.problem}" if one.problem else ""
        if one.record:
            check = "digest known beforehand" if one.record["pinned"] else "trusted on first use"
            left_out = f", {one.record['left_out']:,} left out" if one.record["left_out"] else ""
            detail = f", {one.record['rows']:,} rows{left_out}; sha256 {one.record['sha256']}, {check}"
        click.echo(f"{one.file}: {one.state}{detail}")
    if failed := sum(one.state == "failed" for one in results):
        raise FetchError(
            f"{failed} of {len(results)} files could not be fetched; run it again. Without a network, "
            f"run 'distill data list {suite} --urls | wget -x -i -' on a machine that has one, and name the "
            "folder with --downloads"
        )


@data_command.command("pairs")
@click.argument("data", type=_FOLDER)
@click.option(
    "--to", "folder", type=_FOLDER, required=True, help="Folder to write pairs.tsv and texts.tsv to."
)
def pairs_command(data: Path, folder: Path) -> None:
    """Write the training pairs of the suite entities in DATA, without its test queries.

    pairs.tsv (anchor, positive), for 'distill finetune', has each query that is not of the split test with
    its entity. texts.tsv, for 'embedcache build', has these queries and the entities of all catalogues.
    """
    from distill.evaluation.catalogues import PAIRS, TEXTS, read_entity_pairs, write_entity_pairs

    found = read_entity_pairs(data)
    write_entity_pairs(found, folder)
    for name, counts in found.sets.items():
        left_out = [
            f"{count:,} {what}" for what, count in counts.items() if what not in ("queries", "entities")
        ]
        detail = f"; left out: {', '.join(left_out)}" if left_out else ""
        click.echo(f"{name}: {counts['queries']:,} queries, {counts['entities']:,} entities{detail}")
    click.echo(f"{folder / PAIRS}: {len(found.pairs):,} pairs")
    click.echo(f"{folder / TEXTS}: {len(found.texts):,} texts")
