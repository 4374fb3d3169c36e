"""What ``embedcache push``, ``pull`` and ``sync`` print."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, TypeVar

import click

if TYPE_CHECKING:
    from embedcache.share import (
        CollectResult,
        PulledPart,
        PullEstimate,
        PullResult,
        PushResult,
        RemoteCheck,
        RemoteDifference,
        RemoteListing,
        SampleCheck,
        SyncResult,
    )

DoneT = TypeVar(
    "DoneT",
    "PushResult",
    "PullResult",
    "SyncResult",
    "PullEstimate",
    "CollectResult",
    "RemoteCheck",
    "RemoteDifference",
    "RemoteListing",
)


def _rate(count: int, seconds: float) -> str:
    from embedcache.cli.tables import size

    if not count:
        return f"{seconds:,.1f} s"
    return f"{seconds:,.1f} s, {size(count / max(seconds, 1e-9))}/s"


def report(done: DoneT, show: Callable[[DoneT], None], as_json: bool) -> None:
    """Print what was done: as JSON, or as ``show`` does."""
    import json

    if as_json:
        click.echo(json.dumps(done.to_json(), indent=2))
    else:
        show(done)


def show_sync(done: SyncResult, told: Collection[str] = ()) -> None:
    """Print what a sync did, but for what was ``told`` before."""
    show_pulled(done, told)
    if done.pushed is None:
        click.echo("nothing was pushed: bad vectors must not be sent on")
    else:
        show_push(done.pushed)


def show_pulled(done: SyncResult, told: Collection[str] = ()) -> None:
    """Print what the pull of a sync did, but for what was ``told`` before."""
    if done.pulled is not None:
        show_pull(done.pulled, told)


def show_push(done: PushResult) -> None:
    """Print what a push did."""
    from embedcache.cli.tables import print_table, size

    print_table(
        (f"push to {done.remote}", "files and row indexes", "size"),
        [
            ("sent", f"{done.sent:,}", size(done.sent_bytes)),
            ("already there", f"{done.present:,}", size(done.present_bytes)),
            ("sent by others meanwhile", f"{done.others:,}", size(done.others_bytes)),
        ],
    )
    for line in done.told:
        click.echo(line)
    signed = f", signed by {done.signed_by}" if done.signed_by and done.manifest else ""
    # Where objects were gone that a manifest lists, they are all that was to be added.
    unchanged = "manifests list it already" if done.sent else "nothing to add"
    declared = f"manifest {done.manifest[:12]}{signed}" if done.manifest else unchanged
    click.echo(f"{declared}; {_rate(done.sent_bytes, done.seconds)}")


def show_pull(done: PullResult, told: Collection[str] = ()) -> None:
    """Print what a pull did, but for what was ``told`` before."""
    from embedcache.cli.tables import print_table, size
    from embedcache.sizes import counted

    converted = []
    if done.converted:
        converted = [("of these kept in another codec", f"{done.converted:,}", size(done.converted_bytes))]
    if done.fetched or done.fetched_bytes:
        print_table(
            (f"pull from {done.remote}", "files", "size"),
            [
                ("fetched", f"{done.fetched:,}", size(done.fetched_bytes - done.fetched_row_bytes)),
                *([("vectors and row indexes", "", size(done.fetched_row_bytes))] if done.part else []),
                *converted,
                ("already there", f"{done.present:,}", size(done.present_bytes)),
            ],
        )
    if done.part is not None:
        _show_part(done.part)
    for line in done.told:
        if line not in told:
            click.echo(line)
    for check in done.samples:
        compared = f"{counted(check.sampled, 'text')} compared: " if check.sampled else ""
        click.echo(f"{check.teacher}: {compared}{check.verdict}; {check.told}")
    is_compared = any(check.sampled for check in done.samples)
    took = _rate(done.fetched_bytes, done.seconds)
    took += f", and {done.sample_seconds:,.1f} s to compare samples" if is_compared else ""
    if done.fetched or done.fetched_bytes:
        fetched = f"{_rows(done.fetched_text_rows, done.fetched_vectors)} fetched"
    else:
        fetched = _nothing_to_fetch(done.remote, done.present, done.present_bytes)
    click.echo(f"{fetched}, of {counted(done.manifests, 'manifest')}; {took}")


def _show_part(part: PulledPart) -> None:
    from embedcache.cli.tables import print_table, size
    from embedcache.sizes import counted

    was_there = ", which was there" if part.was_there else ""
    click.echo(
        f"corpus {part.corpus!r}{was_there}: {counted(part.rows, 'row')} of {part.of:,}, with "
        f"{counted(part.texts, 'distinct text')}"
    )
    if any(vectors.taken or vectors.missing for vectors in part.vectors):
        print_table(
            ("vectors of", "fetched", "size", "already there", "not on the remote"),
            [
                (
                    vectors.teacher,
                    f"{vectors.taken:,}",
                    size(vectors.bytes),
                    f"{vectors.present:,}",
                    f"{vectors.missing:,}",
                )
                for vectors in part.vectors
            ],
        )


def show_estimate(estimate: PullEstimate) -> None:
    """Print what a pull would fetch."""
    from embedcache.cli.tables import print_table, size
    from embedcache.sizes import counted

    if not (estimate.files or estimate.vector_bytes):
        for note in estimate.told:
            click.echo(note)
        nothing = _nothing_to_fetch(estimate.remote, estimate.present, estimate.present_bytes)
        click.echo(f"{nothing}; {counted(estimate.manifests, 'manifest')} read")
        return
    lines = [
        ("to be fetched", f"{estimate.files:,}", size(estimate.bytes)),
        *([("vectors and row indexes, about", "", _vector_bytes(estimate))] if estimate.corpus else []),
        ("already there", f"{estimate.present:,}", size(estimate.present_bytes)),
    ]
    print_table((f"pull from {estimate.remote}", "files", "size"), lines)
    for note in estimate.told:
        click.echo(note)
    click.echo(f"{_described(estimate)}; {counted(estimate.manifests, 'manifest')} read, nothing fetched")


def tell_estimate(estimate: PullEstimate) -> None:
    """Say on standard error what is about to be fetched, and what else is to be known before."""
    for note in estimate.told:
        click.echo(note, err=True)
    if estimate.files or estimate.vector_bytes:
        click.echo(_described(estimate), err=True)


def warn(line: str) -> None:
    """Say on standard error what follows from a push that is about to send something."""
    click.echo(line, err=True)


def _described(estimate: PullEstimate) -> str:
    from embedcache.cli.tables import size
    from embedcache.sizes import counted

    at_most = "at most " if estimate.least_bytes < estimate.bytes else ""
    files = f"{at_most}{counted(estimate.files, 'file')} to be fetched, {size(estimate.bytes)}"
    if not estimate.corpus:
        return f"{files}, with {_rows(estimate.text_rows, estimate.vectors)}"
    vectors = f"{counted(estimate.vectors, 'vector')}, {size(estimate.vector_bytes)}"
    if estimate.least_vector_bytes < estimate.vector_bytes:
        vectors = f"at most {counted(estimate.vectors, 'vector')}, about {_vector_bytes(estimate)}"
        if estimate.vector_bytes < estimate.most_vector_bytes:
            vectors += ", the more the farther they lie apart"
    rows = f"{counted(estimate.text_rows, 'row')} of texts"
    return f"for corpus {estimate.corpus!r}: {files}, with {rows}, and {vectors}"


def _nothing_to_fetch(remote: str, files: int, count: int) -> str:
    from embedcache.cli.tables import size
    from embedcache.sizes import counted

    return f"nothing to fetch from {remote}: {counted(files, 'file')}, {size(count)}, already there"


def _vector_bytes(estimate: PullEstimate) -> str:
    from embedcache.cli.tables import size

    least, most = size(estimate.vector_bytes), size(estimate.most_vector_bytes)
    return least if least == most else f"{least} to {most}"


def _rows(texts: int, vectors: int) -> str:
    from embedcache.sizes import counted

    return f"{counted(texts, 'row')} of texts and {counted(vectors, 'vector')}"


def exit_if_bad(samples: tuple[SampleCheck, ...]) -> None:
    """Exit with 1 where a sample shows vectors of another teacher."""
    from embedcache.share.pulling.sample_check import bad_samples

    if bad_samples(samples):
        sys.exit(1)
