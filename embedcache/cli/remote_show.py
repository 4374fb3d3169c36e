"""What ``embedcache remote ls`` and ``embedcache remote diff`` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from embedcache.share import RemoteDifference, RemoteListing


def show_listing(listing: RemoteListing) -> None:
    """Print what a remote has, and which of its manifests cannot be read."""
    if not (listing.pushes or listing.refused):
        click.echo(f"nothing has been pushed to {listing.remote} yet")
        return
    if listing.teachers:
        _show_teachers(listing)
    # Vectors may be pushed without any text.
    if listing.corpora:
        _show_corpora(listing)
    _show_pushes(listing)
    for name, why in listing.refused.items():
        click.echo(f"manifest {name[:12]} cannot be read: {why}")


def _show_teachers(listing: RemoteListing) -> None:
    from embedcache.cli.tables import print_table, size

    print_table(
        ("teacher", "contract", "rows", "size", "model", "licence"),
        [
            (
                ", ".join(teacher.names),
                teacher.contract[:12],
                f"{teacher.rows:,}",
                size(teacher.bytes),
                teacher.model,
                teacher.licence,
            )
            for teacher in listing.teachers
        ],
        "teachers",
    )


def _show_corpora(listing: RemoteListing) -> None:
    from embedcache.cli.tables import print_table

    print_table(
        ("corpus", "digest", "rows", "views", "licence"),
        [
            (corpus.name, corpus.digest[:12], f"{corpus.rows:,}", ", ".join(corpus.views), corpus.licence)
            for corpus in listing.corpora
        ],
        "corpora",
    )


def _show_pushes(listing: RemoteListing) -> None:
    from embedcache.cli.tables import print_table, size

    print_table(
        ("manifest", "by", "when", "files", "size", "signed by", "message"),
        [
            (
                push.manifest[:12],
                push.by,
                push.when or push.written,
                f"{push.files:,}",
                size(push.bytes),
                "unknown without cryptography" if push.signed_by is None else ", ".join(push.signed_by),
                push.message,
            )
            for push in listing.pushes
        ],
        "pushes",
    )


def show_difference(difference: RemoteDifference) -> None:
    """Print what a remote and a cache have that the other lacks."""
    from embedcache.cli.tables import print_table, size

    print_table(
        ("", "name", "is", "files", "rows", "size"),
        [
            (line.kind, line.name, state, f"{files:,}", *rest)
            for line in difference.lines
            for state, files, *rest in (
                ("to pull", line.remote_files, f"{line.remote_rows:,}", size(line.remote_bytes)),
                ("to push", line.cache_files, f"{line.cache_rows:,}", size(line.cache_bytes)),
                ("in both", line.both_files, "", ""),
            )
            if files
        ],
    )
    for note in difference.told:
        click.echo(note)
