"""Small caches to share, folder remotes to share them by, and edits of what lies on a remote."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.fsio import canonical_json
from embedcache.share.manifest import manifest_name
from embedcache.share.sample import Live
from embedcache.store.containers import LmdbShards
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher, sentences

TEXTS = sentences(240, seed=5)
SHARD_ROWS = 40
WHEN = "2026-01-31T12:00:00Z"


def make_cache(
    folder: Path,
    texts: Sequence[str] = TEXTS[:120],
    *,
    teacher: Teacher | None = None,
    encoder: FakeEncoder | None = None,
    **settings: Any,
) -> Cache:
    """Build a cache of ``texts`` with the fake teacher."""
    source = folder.parent / "sources" / f"{folder.name}-{settings.get('name', 'corpus')}.txt"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    teacher = teacher or fake_teacher(8)
    settings = {"name": "corpus", "shard_rows": SHARD_ROWS, **settings}
    return build(source, teacher=teacher, encoder=encoder or FakeEncoder(teacher), cache=folder, **settings)  # type: ignore[arg-type]


class OtherVectors(FakeEncoder):
    """An encoder of one teacher that gives another one's vectors."""

    def encode(self, texts: Sequence[str]) -> Any:
        return FakeEncoder(fake_teacher(self.teacher.dimension, seed=9)).encode(texts)


def other_vectors(folder: Path, texts: Sequence[str] = TEXTS[:120], **settings: Any) -> Cache:
    """Build a cache whose vectors are another teacher's under the fake teacher's contract."""
    return make_cache(folder, texts, encoder=OtherVectors(fake_teacher(8)), **settings)


def content(cache: str | Path) -> dict[str, str]:
    """Return path -> sha256 of all that is in a cache outside ``derived/``; shards in LMDB count as files."""
    found: dict[str, str] = {}
    for path in sorted(Path(cache).rglob("*")):
        place = path.relative_to(cache).as_posix()
        if place.startswith("derived/") or not (path.is_file() or path.is_symlink()):
            continue
        if path.name == "vectors.mdb":
            shards = LmdbShards(path)
            folder = path.parent.relative_to(cache).as_posix()
            for name in shards.names():
                data = memoryview(shards.open(name))
                found[f"{folder}/shards/{name}.arrow"] = hashlib.sha256(data).hexdigest()
        elif not path.name.startswith("vectors."):
            found[place] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def objects_of(remote: str | Path) -> dict[str, Path]:
    """Return the objects that lie on a remote: sha256 -> file."""
    return {path.name: path for path in Path(remote).glob("objects/*/*")}


def manifests_of(remote: str | Path) -> list[dict[str, Any]]:
    """Return the manifests of a remote, in the order they were written."""
    return [json.loads(path.read_bytes()) for path in _written(remote)]


def digests_of(remote: str | Path) -> list[str]:
    """Return the digests of the manifests of a remote, in the order they were written."""
    return [path.name[-69:-5] for path in _written(remote)]


def _written(remote: str | Path) -> list[Path]:
    return sorted(Path(remote).glob("manifests/*"), key=lambda path: path.stat().st_mtime_ns)


def listed_by(remote: str | Path) -> dict[str, int]:
    """Return what the manifests of a remote list: sha256 -> bytes; key lists included."""
    files = [file for manifest in manifests_of(remote) for file in manifest["files"]]
    keys = {file["keys"]: 16 * file["rows"] for file in files if file.get("keys")}
    return {file["sha256"]: file["bytes"] for file in files} | keys


def put_manifest(remote: str | Path, value: object, when: str = WHEN, *, alone: bool = True) -> str:
    """Put a manifest on a remote, in place of all others unless ``alone`` is false; return its digest."""
    folder = Path(remote) / "manifests"
    for path in folder.iterdir() if alone else ():
        path.unlink()
    data = value if isinstance(value, bytes) else canonical_json(value)
    name = manifest_name(data, when)
    (folder / name).write_bytes(data)
    return name[-69:-5]


def put_object(remote: str | Path, data: bytes) -> str:
    """Put an object on a remote; return its digest."""
    digest = hashlib.sha256(data).hexdigest()
    path = Path(remote) / "objects" / digest[:2] / digest
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return digest


def edit(remote: str | Path, pattern: str, change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Change the first file in the only manifest whose path matches ``pattern``; return it."""
    (value,) = manifests_of(remote)
    file: dict[str, Any] = next(one for one in value["files"] if re.search(pattern, one["path"]))
    change(file)
    put_manifest(remote, value)
    return file


def replace_object(remote: str | Path, pattern: str, change: Callable[[bytes], bytes]) -> str:
    """Give a file other bytes, in the manifest too; return its path.

    A file that is named by its digest gets another name.
    """

    def replace(file: dict[str, Any]) -> None:
        before = file["sha256"]
        data = change(objects_of(remote)[before].read_bytes())
        file.update(sha256=put_object(remote, data), bytes=len(data))
        file["path"] = file["path"].replace(before, file["sha256"])

    path: str = edit(remote, pattern, replace)["path"]
    return path


def make_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Write a pair of keys as ssh-keygen does; return the private and the public file."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private, public = folder / name, folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption()))
    public.write_bytes(key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH))
    return private, public


def set_teacher(patch: pytest.MonkeyPatch, encoder: FakeEncoder | None = None) -> None:
    """Have pulls find the fake teacher's model on this machine."""
    live = Live(encoder or FakeEncoder(fake_teacher(8)))  # type: ignore[arg-type]
    # The package has a function of the module's name.
    patch.setattr(sys.modules["embedcache.share.pull"], "local_teacher", lambda *_, **__: live)
