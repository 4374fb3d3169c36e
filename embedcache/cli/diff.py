"""``embedcache diff``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from embedcache.cli.options import json_option

if TYPE_CHECKING:
    from embedcache.compare import (
        CacheComparison,
        CorpusDifference,
        VectorComparison,
        ViewDifference,
    )

_TEXT_SHOWN = 60


@click.command("diff")
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--sample",
    type=click.IntRange(0),
    default=10_000,
    show_default=True,
    help="Vectors to compare for each teacher.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Chooses the sample.")
@json_option
def diff_command(first: str, second: str, sample: int, seed: int, as_json: bool) -> None:
    """Say what sets the caches A and B apart: corpora, views, teachers, keys and vectors.

    Vectors count as the same where no more than their codecs and compute dtypes sets them apart. Exits with 0
    if the caches are the same, with 1 if they differ, with 2 if one cannot be read.
    """
    import json

    from embedcache.cache import Cache
    from embedcache.cli.progress import watched
    from embedcache.compare import compare_caches
    from embedcache.errors import EmbedCacheError

    try:
        with watched() as on_step:
            comparison = compare_caches(
                Cache(first), Cache(second), sample=sample, seed=seed, on_progress=on_step
            )
    except EmbedCacheError as error:
        # 1 says that the caches differ.
        error.exit_code = 2
        raise
    if as_json:
        click.echo(json.dumps(comparison.to_json(), indent=2))
    else:
        _print(comparison)
    sys.exit(0 if comparison.same else 1)


def _print(found: CacheComparison) -> None:
    from rich.console import Console
    from rich.text import Text

    from embedcache.cli.tables import print_table
    from embedcache.contract import describe_differences

    lines = []
    for side, names in zip("AB", found.corpora_only, strict=True):
        lines += [f"corpus {name}: only in {side}" for name in names]
    lines += [f"corpus {name}: the same" for name in found.corpora_same]
    lines += [_corpus_line(one) for one in found.corpora_other]
    for side, views in zip("AB", found.views_only, strict=True):
        lines += [f"view {view} of corpus {corpus}: only in {side}" for corpus, view in views]
    lines += [_view_line(one) for one in found.views_other]
    for side, teachers in zip("AB", found.teachers_only, strict=True):
        lines += [
            f"teacher {', '.join(names)} ({contract[:12]}): only in {side}"
            for contract, names in teachers.items()
        ]
    lines += [
        f"teacher {one.name}: A and B mean different contracts by it, {describe_differences(one.differences)}"
        for one in found.clashes
    ]
    lines += [
        f"teacher {one.contract_id[:12]}: called {', '.join(one.names[0])} in A and "
        f"{', '.join(one.names[1])} in B"
        for one in found.vectors
        if one.names[0] != one.names[1]
    ]
    console = Console()
    for line in lines:
        console.print(Text(line), soft_wrap=True)
    for one in found.vectors:
        print_table(("vectors", "value"), _vector_rows(one), title=f"teacher {', '.join(one.names[0])}")
    loses = any(one.codecs[0] != one.codecs[1] for one in found.vectors)
    same = "the caches are the same" + (", but for what their codecs lose" if loses else "")
    console.print(same if found.same else "the caches differ")


def _corpus_line(one: CorpusDifference) -> str:
    line = f"corpus {one.name}: A has {one.rows[0]:,} rows, B {one.rows[1]:,}; "
    line += f"they differ in {', '.join(one.columns)}"
    if one.first_row is None:
        return line
    texts = ["nothing" if text is None else repr(text[:_TEXT_SHOWN]) for text in one.texts]
    return f"{line}, first in row {one.first_row:,} (counted from 0): {texts[0]} / {texts[1]}"


def _view_line(one: ViewDifference) -> str:
    line = f"view {one.name} of corpus {one.corpus}: "
    line += f"made another way, {one.recipes}" if one.recipes else "made the same way"
    if one.first_row is None:
        return f"{line}; the texts are the same"
    texts = [repr((text or "")[:_TEXT_SHOWN]) for text in one.texts]
    return f"{line}; first row that differs: {one.first_row:,} (counted from 0), {texts[0]} / {texts[1]}"


def _vector_rows(one: VectorComparison) -> list[tuple[str, str]]:
    rows = [
        ("only in A", f"{one.only[0]:,}"),
        ("only in B", f"{one.only[1]:,}"),
        ("in both", f"{one.both:,}"),
        ("codecs", " / ".join(", ".join(codecs) or "none" for codecs in one.codecs)),
    ]
    if one.worst_cosine is not None:
        verdict = (
            "a real difference" if one.beyond_noise else "no more than codecs and compute dtypes explain"
        )
        rows += [
            ("compared", f"{one.sampled:,}"),
            (
                "worst cosine",
                f"{one.worst_cosine:.7f}, expected at least {one.expected_cosine:.7f}: {verdict}",
            ),
            ("mean cosine", f"{one.mean_cosine:.7f}"),
            ("largest difference", f"{one.largest_difference:.3g} of a component"),
        ]
    elif one.both:
        rows.append(("compared", "none: --sample 0"))
    if one.provenance[0] != one.provenance[1]:
        rows += [
            (f"computed in {side} by", provenance)
            for side, provenance in zip("AB", _own_provenance(one), strict=True)
        ]
    return rows


def _own_provenance(one: VectorComparison) -> list[str]:
    """Return what the shards of either side were computed by, without what they all have in common."""
    sides = [
        [[f"{name} {value}" for name, value in each.items()] for each in side] for side in one.provenance
    ]
    common = set.intersection(*(set(each) for side in sides for each in side))
    return [
        "; ".join(
            ", ".join(item for item in each if item not in common) or "nothing but what all shards share"
            for each in side
        )
        for side in sides
    ]
