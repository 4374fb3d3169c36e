"""``embedcache remote``: names of remotes, and what is on one."""

from __future__ import annotations

import sys

import click

from embedcache.cli.options import cache_option, json_option, skip_option


@click.group("remote")
def remote_command() -> None:
    """Name remotes, and look at what they have."""


@remote_command.command("add")
@click.argument("name")
@click.argument("url")
def add_command(name: str, url: str) -> None:
    """Call the remote at URL NAME: a folder, s3://, gs://, sftp://, https:// or hf://."""
    from embedcache.share import add_remote

    click.echo(f"{name}: {add_remote(name, url)}")


@remote_command.command("list")
@json_option
def list_command(as_json: bool) -> None:
    """List the remotes that have a name."""
    import json

    from embedcache.share import list_remotes

    found = list_remotes()
    if as_json:
        click.echo(json.dumps(found, indent=2))
        return
    for name, url in found.items():
        click.echo(f"{name}: {url}")
    if not found:
        click.echo("none; add one with 'embedcache remote add NAME URL'")


@remote_command.command("remove")
@click.argument("name")
def remove_command(name: str) -> None:
    """Forget the name of a remote; what lies there stays."""
    from embedcache.share import remove_remote

    remove_remote(name)
    click.echo(f"{name} is no remote any more; what lies there stays")


@remote_command.command("ls")
@click.argument("remote")
@json_option
def remote_ls_command(remote: str, as_json: bool) -> None:
    """List the teachers, corpora and pushes of REMOTE, a name or a URL.

    Exits with 1 if a manifest there cannot be read.
    """
    import json

    from embedcache.cli.tables import print_table, size
    from embedcache.share import list_remote

    found = list_remote(remote)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
        sys.exit(1 if found.refused else 0)
    print_table(
        ("teacher", "contract", "rows", "size", "model", "licence"),
        [
            (
                ", ".join(one.names),
                one.contract[:12],
                f"{one.rows:,}",
                size(one.bytes),
                one.model,
                one.licence,
            )
            for one in found.teachers
        ],
        "teachers",
    )
    print_table(
        ("corpus", "digest", "rows", "views", "licence"),
        [
            (one.name, one.digest[:12], f"{one.rows:,}", ", ".join(one.views), one.licence)
            for one in found.corpora
        ],
        "corpora",
    )
    print_table(
        ("manifest", "by", "when", "files", "size", "signed by", "message"),
        [
            (
                one.manifest[:12],
                one.by,
                one.when,
                f"{one.files:,}",
                size(one.bytes),
                "unknown without cryptography" if one.signed_by is None else ", ".join(one.signed_by),
                one.message,
            )
            for one in found.pushes
        ],
        "pushes",
    )
    for name, why in found.refused.items():
        click.echo(f"manifest {name[:12]} cannot be read: {why}")
    if found.refused:
        sys.exit(1)


@remote_command.command("diff")
@click.argument("remote")
@cache_option
@skip_option
@json_option
def remote_diff_command(remote: str, cache: str, skip_manifests: tuple[str, ...], as_json: bool) -> None:
    """Say what REMOTE has and the cache lacks, and the other way round.

    A cache that is not there yet has nothing. Exits with 0 if both have the same, with 1 if not.
    """
    import json

    from embedcache.cli.progress import interruptible
    from embedcache.cli.tables import print_table, size
    from embedcache.share import compare_with_remote

    with interruptible() as on_progress:
        found = compare_with_remote(cache, remote, skip_manifests=skip_manifests, on_progress=on_progress)
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=2))
    else:
        print_table(
            ("", "name", "to pull: files", "rows", "size", "to push: files", "rows", "size", "in both"),
            [
                (
                    one.kind,
                    one.name,
                    f"{one.remote_files:,}",
                    f"{one.remote_rows:,}",
                    size(one.remote_bytes),
                    f"{one.cache_files:,}",
                    f"{one.cache_rows:,}",
                    size(one.cache_bytes),
                    f"{one.both_files:,}",
                )
                for one in found.lines
            ],
        )
        for line in found.told:
            click.echo(line)
    if not found.is_same:
        sys.exit(1)
