"""Checks of views: that their recipes are whole, and their rows those of the recipe and the corpus."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from embedcache.check.bench import Bench
from embedcache.check.findings import REPAIR, UPGRADE, Findings, Kind, damage, note
from embedcache.check.inventory import Entry
from embedcache.check.verify.corpora import VIEW, check_listing, check_rows
from embedcache.check.verify.documents import is_newer, told
from embedcache.corpus.corpus import DESCRIPTION, Corpus, CorpusInfo, read_info
from embedcache.corpus.part import ORIGINAL
from embedcache.corpus.view_record import RECIPE, RECIPE_VERSION, ViewRecord, read_record
from embedcache.errors import CacheFormatError, CorruptCacheError
from embedcache.fsio import read_sealed_json

_BUILD_AGAIN = "'embedcache build' with its --view makes it anew"
# Nothing else in the cache says how the texts were made.
_MEND_RECIPE = (
    "'embedcache build' with its --view and --overwrite makes the view anew; 'embedcache repair' mends "
    "no more than a single changed byte here"
)


def check_recipe(bench: Bench, entry: Entry) -> Findings:
    """Check ``recipe.json``."""
    path = bench.folder / entry.path
    try:
        read_record(path.parent)
    except CorruptCacheError as error:
        yield damage(entry.path, entry.kind, told(error, path), _MEND_RECIPE)
    except CacheFormatError as error:
        yield damage(entry.path, entry.kind, told(error, path), UPGRADE if _is_newer(path) else _MEND_RECIPE)


def _is_newer(path: Path) -> bool:
    try:
        return is_newer(read_sealed_json(path).get("version"), RECIPE_VERSION)
    except (OSError, ValueError):  # replaced just now
        return False


def check_view(
    bench: Bench, path: str, there: Collection[Entry], damaged: Collection[str], corpus: Corpus | None
) -> Findings:
    """Check the files of a view together.

    Args:
        bench: where the cache is.
        path: the view's folder, relative to the cache.
        there: its files.
        damaged: paths of those that are damaged, which are left out.
        corpus: the corpus it belongs to; None where that is not there or its description is damaged.
    """
    kinds = {entry.kind for entry in there}
    if Kind.RECIPE not in kinds:
        yield note(
            f"{path}/{RECIPE}",
            Kind.RECIPE,
            "it is missing: the view was never finished, and nothing reads it",
            f"{_BUILD_AGAIN}, 'embedcache gc' takes it away",
        )
        return
    record, info = _record(bench, path, damaged), None
    if record is not None and corpus is not None and record.of != corpus.info.digest:
        yield note(
            f"{path}/{RECIPE}",
            Kind.RECIPE,
            f"the view was made of other rows than the corpus has now (digest {record.of[:12]}, not "
            f"{corpus.info.digest[:12]}), and nothing reads it",
            f"{_BUILD_AGAIN}, 'embedcache gc' takes it away",
        )
        return
    if Kind.VIEW not in kinds:
        yield damage(f"{path}/{DESCRIPTION}", Kind.VIEW, "it is missing")
    else:
        info = _info(bench, path, damaged)
    if info is None:
        return
    parts = [entry.path.rpartition("/")[2] for entry in there if entry.kind is Kind.VIEW_PART]
    yield from check_listing(path, info, parts, VIEW)
    bad = {part.file_name for part in info.parts if part.file_name not in parts}
    bad |= {name for name in parts if f"{path}/{name}" in damaged}
    yield from check_rows(bench, path, info, bad, VIEW)
    if set(info.columns) != {ORIGINAL}:
        found = f"it has the columns {', '.join(info.columns)}; a view has its texts alone"
        yield damage(f"{path}/{DESCRIPTION}", Kind.VIEW, found, REPAIR)
    elif record is not None and record.digest != info.digest:
        found = (
            f"its rows have the digest {info.digest[:12]}, and {RECIPE} was written for {record.digest[:12]}"
        )
        yield damage(f"{path}/{DESCRIPTION}", Kind.VIEW, found)
    elif corpus is not None and record is not None and info.rows != len(corpus):
        found = f"it has {info.rows:,} rows, and the corpus {len(corpus):,}"
        yield damage(f"{path}/{DESCRIPTION}", Kind.VIEW, found)


def check_orphaned(path: str) -> Findings:
    """Report the views of a corpus that is not there."""
    yield note(
        path,
        Kind.RECIPE,
        "there are views, and no corpus that they belong to",
        "build the corpus again, or 'embedcache gc' takes them away",
    )


def _record(bench: Bench, path: str, damaged: Collection[str]) -> ViewRecord | None:
    if f"{path}/{RECIPE}" in damaged:
        return None
    try:
        return read_record(bench.folder / path)
    except (CorruptCacheError, CacheFormatError):  # replaced just now
        return None


def _info(bench: Bench, path: str, damaged: Collection[str]) -> CorpusInfo | None:
    if f"{path}/{DESCRIPTION}" in damaged:
        return None
    try:
        return read_info(bench.folder / path)
    except (CorruptCacheError, CacheFormatError):  # replaced just now
        return None
