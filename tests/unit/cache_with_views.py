"""A cache with views of several kinds, and a model's among them, to check and to damage."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from check_helpers import SHARD_ROWS, TEACHER
from flat_build import build

from embedcache.cache import Cache
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.view_store import store_view
from embedcache.store import Shard
from embedcache.testing import FakeEncoder, sentences
from embedcache.views.plan import ViewOptions
from embedcache.views.recipe import Made, Recipe

TEXTS = [*sentences(300, seed=8), "word"]
VIEWS = ("crop", "delete-words:0.3*2", "delete-one-word", "column:french")
NAMES = ("column-french", "crop", "delete-one-word", "delete-words-0.3-1", "delete-words-0.3-2", "mask-fill")
MODEL = Recipe("mask-fill", "mask-fill", {"share": 0.15}, 0, 0, {"mask-fill": "ab" * 32})


def write_views_source(folder: Path) -> Path:
    """Write texts with a French column, which has gaps."""
    source = folder / "pairs.tsv"
    lines = [f"{text}\t{'' if number % 7 == 0 else text[::-1]}" for number, text in enumerate(TEXTS)]
    source.write_text("\n".join(["text\tfrench", *lines, ""]), encoding="utf-8")
    # A file that has just been written may change again unseen, and is not noted.
    os.utime(source, (1_700_000_000, 1_700_000_000))
    return source


def age(folder: Path, hours: float) -> None:
    """Let everything in a folder look as if it was last touched so long ago."""
    then = time.time() - hours * 3600
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (then, then))


def build_views(
    cache: Path,
    source: Path,
    *views: str,
    embed: tuple[str, ...] = (),
    **settings: Any,
) -> Cache:
    """Build ``source`` with ``views``, or with all of :data:`VIEWS`."""
    return build(
        source,
        teacher=TEACHER,
        encoder=FakeEncoder(TEACHER),  # type: ignore[arg-type]  # a fake one does as well
        cache=cache,
        text_column="text",
        shard_rows=SHARD_ROWS,
        views=ViewOptions(views or VIEWS, embed=embed),
        **settings,
    )


def add_model_view(corpus: Corpus) -> None:
    """Store a view as a masked language model would have made it."""

    def make(first_row: int, texts: list[str]) -> list[Made]:
        return [f"model {text}" for text in texts]

    store_view(corpus, MODEL, make)


def shards_of_views(cache: Cache) -> list[Shard]:
    """Return the shards that hold no text of the corpus itself."""
    originals = {bytes(key) for part in cache.corpus().iter_keys() for key in part}
    shards = cache.store(cache.teacher().contract).shards
    return [shard for shard in shards if originals.isdisjoint(map(bytes, shard.keys))]


def build_all(cache: Path, folder: Path, **settings: Any) -> Cache:
    """Build a cache with every view of :data:`NAMES`, of which the teacher has encoded ``crop``."""
    opened = build_views(cache, write_views_source(folder), embed=("crop",), **settings)
    add_model_view(opened.corpus())
    return opened
