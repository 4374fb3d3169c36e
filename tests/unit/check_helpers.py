"""Small caches to damage, and what is in them."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from click.testing import CliRunner
from flat_build import build

from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.corpus.readers import ReadOptions
from embedcache.fsio import sealed, spelled_json
from embedcache.repair import Repair, repair
from embedcache.store import LmdbShards
from embedcache.testing import FakeEncoder, fake_teacher, sentences
from embedcache.verify import verify

if TYPE_CHECKING:
    from embedcache.teacher.encode import Encoder

TEXTS = sentences(640, seed=5)
KINDS = {"arrow": ("arrow", "float16"), "lmdb": ("lmdb", "int8"), "pq": ("arrow", "pq")}
SHARD_ROWS = 256
TEACHER = fake_teacher(16)
OPTIONS = ReadOptions("text", "id", "label")

MakeCopy = Callable[[str], Path]
"""Gives a copy of a sound cache of a kind, to be damaged."""


def write_source(folder: Path) -> Path:
    """Write a file of texts with ids and labels, and a line that is skipped."""
    source = folder / "corpus.tsv"
    lines = [f"{text}\tid {number}\t{number % 3}" for number, text in enumerate(TEXTS)]
    source.write_text(
        "\n".join(["text\tid\tlabel", *lines[:7], "\tno text\t1", *lines[7:], ""]), encoding="utf-8"
    )
    # A file that has just been written may change again unseen, and is not noted.
    os.utime(source, (1_700_000_000, 1_700_000_000))
    return source


def build_with(cache: Path, source: Path, encoder: FakeEncoder | Encoder, **settings: str) -> Cache:
    """Build ``source`` with its ids and labels."""
    return build(
        source,
        teacher=encoder.teacher,
        encoder=encoder,  # type: ignore[arg-type]  # a fake one does as well
        cache=cache,
        text_column="text",
        id_column="id",
        label_column="label",
        shard_rows=SHARD_ROWS,
        **settings,  # type: ignore[arg-type]
    )


def build_cache(cache: Path, source: Path, *, store: str, codec: str) -> Cache:
    """Build a cache with a teacher of two names, and every kind of derived file."""
    opened = build_with(cache, source, FakeEncoder(TEACHER), store=store, codec=codec)
    opened.register_teacher("other-name", TEACHER.contract, {"spec": "fake"})
    opened.remember_model(TEACHER.contract, str(source.parent / "a model that is not there"))
    write_tokens(opened.derived_folder / "tokens" / ("0" * 32))
    # As any reader does: it notes the digests it has taken.
    opened.lookup(TEXTS[:3], "fake")
    return opened


def write_tokens(folder: Path) -> None:
    """Write token arrays as training does."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"ids.bin": np.arange(60, dtype=np.uint16).tobytes(), "offsets.npy": bytes(range(40))}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    header = {"dtype": "uint16", "rows": 4, "files": digests}
    (folder / "tokens.json").write_bytes(spelled_json(sealed(header)))


def copy_of(cache: Path, target: Path) -> Path:
    """Return a copy of a cache that may be damaged."""
    shutil.copytree(cache, target)
    return target


def files_of(cache: Path) -> list[str]:
    """Return every file that holds something, relative to the cache; not the lock of an LMDB store."""
    paths = (path for path in sorted(cache.rglob("*")) if path.is_file())
    return [path.relative_to(cache).as_posix() for path in paths if not path.name.endswith("-lock")]


def content_of(cache: Path) -> dict[str, str]:
    """Return path -> sha256 of all that is not derived; of an LMDB store the shards in it.

    The pages of two LMDB files may differ though the same shards are in them.
    """
    found = {}
    for name in files_of(cache):
        path = cache / name
        if name.startswith("derived/") or path.name == "vectors.seal.json":
            continue
        if path.name == "vectors.mdb":
            shards = LmdbShards(path)
            found |= {
                f"{name}#{shard}": hashlib.sha256(memoryview(shards.open(shard))).hexdigest()
                for shard in shards.names()
            }
            shards.close()
        else:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def flip(path: Path, place: int, mask: int) -> None:
    """Change one byte of a file, in place."""
    with path.open("r+b") as handle:
        handle.seek(place)
        byte = handle.read(1)[0]
        handle.seek(place)
        handle.write(bytes([byte ^ mask]))


def mended(cache: Path, encoder: object = None, **settings: object) -> Repair:
    """Repair a cache of the fake teacher."""
    return repair(cache, encoder=encoder or FakeEncoder(TEACHER), **settings)  # type: ignore[arg-type]


def only(cache: Path, pattern: str) -> Path:
    """Return the first file that matches ``pattern``."""
    return min(cache.glob(pattern))


def outcomes(done: Repair) -> set[str]:
    """Return what became of what was damaged."""
    return {fix.outcome for fix in done.fixes}


def run(*arguments: object, columns: int = 300) -> tuple[int, str]:
    """Run ``embedcache`` on a terminal of so many columns; return its exit code and what it prints."""
    done = CliRunner().invoke(cli, [str(one) for one in arguments], env={"COLUMNS": str(columns)})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


def assert_as_before(cache: Path, sound: Path) -> None:
    """Assert that a cache holds what it held before, byte for byte."""
    assert content_of(cache) == content_of(sound)
    assert verify(cache).damage == []
