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

    remotes = list_remotes()
    if as_json:
        click.echo(json.dumps(remotes, indent=2))
        return
    for name, url in remotes.items():
        click.echo(f"{name}: {url}")
    if not remotes:
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

    The time of a push is the one that it gives, or else the time at which the place says that its manifest
    was written. Exits with 1 if a manifest there cannot be read.
    """
    from embedcache.cli.remote_show import show_listing
    from embedcache.cli.share_show import report
    from embedcache.share import list_remote

    listing = list_remote(remote)
    report(listing, show_listing, as_json)
    if listing.refused:
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
    from embedcache.cli.progress import interruptible
    from embedcache.cli.remote_show import show_difference
    from embedcache.cli.share_show import report
    from embedcache.share import compare_with_remote

    with interruptible() as on_progress:
        difference = compare_with_remote(
            cache, remote, skip_manifests=skip_manifests, on_progress=on_progress
        )
    report(difference, show_difference, as_json)
    if not difference.is_same:
        sys.exit(1)
