"""Small caches of each kind to damage, and their content."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from flat_build import build

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.fsio import sealed, spelled_json
from embedcache.store import LmdbShards
from embedcache.testing import FakeEncoder, fake_teacher, sentences
from embedcache.verify import verify
from embedcache.views.plan import ViewOptions

TEXTS = sentences(640, seed=5)
SHARD_ROWS = 256
TEACHER = fake_teacher(16)
VIEWS = ViewOptions(("crop", "delete-words:0.3", "delete-one-word"), embed=("crop",))
KINDS: dict[str, dict[str, Any]] = {
    "arrow": {"codec": "float16"},
    "lmdb": {"codec": "int8", "store": "lmdb"},
    "pq": {"codec": "pq"},
    "views": {"views": VIEWS},
}

MakeCopy = Callable[[str], Path]
"""Gives a copy of a sound cache of a kind, to be damaged."""


def build_caches(folder: Path) -> dict[str, Path]:
    """Build a cache of each kind, with a teacher of two names."""
    source = folder / "corpus.tsv"
    lines = [f"{text}\tid {number}\t{number % 3}" for number, text in enumerate(TEXTS)]
    source.write_text("\n".join(["text\tid\tlabel", *lines, ""]), encoding="utf-8")
    # A file that has just been written may change again unseen, and is not noted.
    os.utime(source, (1_700_000_000, 1_700_000_000))
    for kind, settings in KINDS.items():
        cache = build(
            source,
            teacher=TEACHER,
            encoder=FakeEncoder(TEACHER),
            cache=folder / kind,
            text_column="text",
            id_column="id",
            label_column="label",
            shard_rows=SHARD_ROWS,
            **settings,
        )
        cache.register_teacher("other-name", TEACHER.contract, {"spec": "fake"})
        cache.lookup(TEXTS[:3], "fake")
    return {kind: folder / kind for kind in KINDS}


def own_files(cache: Path) -> list[str]:
    """Return every file outside ``derived/`` but the lock of an LMDB store, relative to the cache."""
    names = [path.relative_to(cache).as_posix() for path in sorted(cache.rglob("*")) if path.is_file()]
    return [name for name in names if not name.startswith("derived/") and not name.endswith("-lock")]


def content_of(cache: Path) -> dict[str, str]:
    """Return path -> sha256 of all that is not derived; shards count as files wherever they lie."""
    found = {}
    for name in own_files(cache):
        path = cache / name
        if path.name == "vectors.mdb":
            shards = LmdbShards(path)
            for shard in shards.names():
                digest = hashlib.sha256(memoryview(shards.open(shard))).hexdigest()
                found[f"{Path(name).parent}/shards/{shard}.arrow"] = digest
        elif path.name != "vectors.seal.json":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def flip(path: Path, place: int) -> None:
    """Flip a bit of a file, in place."""
    with path.open("r+b") as handle:
        handle.seek(place)
        byte = handle.read(1)[0]
        handle.seek(place)
        handle.write(bytes([byte ^ 1]))


def reseal(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a sealed document, and seal it again."""
    value = json.loads(path.read_bytes())
    del value["sha256"]
    change(value)
    path.write_bytes(spelled_json(sealed(value)))


def only(cache: Path, pattern: str) -> Path:
    """Return the first file that matches ``pattern``."""
    return min(cache.glob(pattern))


def run(*arguments: object) -> tuple[int, str]:
    """Run ``embedcache``; return its exit code and what it prints."""
    done = CliRunner().invoke(cli, [str(one) for one in arguments], env={"COLUMNS": "300"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def assert_whole(cache: Path) -> None:
    """Assert that nothing is damaged, and every text has the vector it had."""
    assert verify(cache).damage == []
    expected = FakeEncoder(TEACHER).encode(TEXTS).vectors
    found = Cache(cache).lookup(TEXTS, TEACHER.contract.id)
    assert float((expected * found).sum(axis=1).min()) > 0.5
