"""Small caches to share, and remotes in folders to share them by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.fsio import canonical_json
from embedcache.store.containers import LmdbShards
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher, sentences

TEXTS = sentences(240, seed=5)
SHARD_ROWS = 40


def make_cache(
    folder: Path, texts: Sequence[str] = TEXTS, *, teacher: Teacher | None = None, **settings: Any
) -> Cache:
    """Build a cache of ``texts`` with the fake teacher."""
    source = folder.parent / f"{folder.name}-{settings.get('name', 'corpus')}.txt"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    teacher = teacher or fake_teacher(8)
    settings = {"name": "corpus", "shard_rows": SHARD_ROWS, **settings}
    return build(source, teacher=teacher, encoder=FakeEncoder(teacher), cache=folder, **settings)


def content(cache: Path) -> dict[str, str]:
    """Return what a cache holds, path -> sha256, without what is derived; shards in LMDB count as files."""
    found: dict[str, str] = {}
    for path in sorted(cache.rglob("*")):
        inside = path.relative_to(cache).as_posix()
        if not path.is_file() or inside.startswith("derived/") or "/.tmp-" in f"/{inside}":
            continue
        if path.name == "vectors.mdb":
            shards = LmdbShards(path)
            for name in shards.names():
                digest = hashlib.sha256(memoryview(shards.open(name))).hexdigest()
                found[f"{path.parent.relative_to(cache).as_posix()}/shards/{name}.arrow"] = digest
        elif not path.name.startswith("vectors."):
            found[inside] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def files_of(remote: Path, folder: str) -> dict[str, bytes]:
    """Return the files below a folder of a remote: name -> bytes."""
    return {
        path.relative_to(remote / folder).as_posix(): path.read_bytes()
        for path in sorted((remote / folder).rglob("*"))
        if path.is_file()
    }


def claims_left(remote: Path) -> list[str]:
    """Return the names of the claims that lie on a remote."""
    return sorted(files_of(remote, "claims").keys() - {"README"})


def manifest_of(remote: Path) -> dict[str, Any]:
    """Return the content of the only manifest."""
    (data,) = files_of(remote, "manifests").values()
    found: dict[str, Any] = json.loads(data)
    return found


def put_manifest(remote: Path, value: object) -> str:
    """Replace the manifests of a remote by one that says ``value``; return its id."""
    for path in (remote / "manifests").iterdir():
        path.unlink()
    data = value if isinstance(value, bytes) else canonical_json(value)
    digest = hashlib.sha256(data).hexdigest()
    (remote / "manifests" / f"{digest}.json").write_bytes(data)
    return digest


def put_object(remote: Path, data: bytes) -> str:
    """Put an object on a remote; return its digest."""
    digest = hashlib.sha256(data).hexdigest()
    place = remote / "objects" / digest[:2] / digest
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return digest
