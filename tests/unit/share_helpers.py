"""Small caches to share, and remotes in folders to share them by."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.check.verify.deep import BAD
from embedcache.contract import Contract
from embedcache.fsio import canonical_json
from embedcache.sample_notes import SampleNotes
from embedcache.share.places import parse_location
from embedcache.share.pulling.arrive import Arrivals
from embedcache.share.remote.claims import Claims
from embedcache.share.remote.marks import new_mark
from embedcache.share.remote.remote import Remote
from embedcache.share.remotes import location_of
from embedcache.share.rows.shard_index import index_bytes
from embedcache.store.containers import LmdbShards
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher, sentences

TEXTS = sentences(240, seed=5)
SHARD_ROWS = 40
ELSEWHERE = "0" * 12


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


class OtherVectors(FakeEncoder):
    """Says that it is the teacher and is another."""

    def encode(self, texts: Sequence[str]) -> Any:
        return FakeEncoder(fake_teacher(8, seed=9)).encode(texts)


def bad_cache(
    folder: Path, texts: Sequence[str] = TEXTS[:SHARD_ROWS], name: str = "bad", **settings: Any
) -> Cache:
    """Build a cache whose vectors are another teacher's."""
    source = folder.parent / f"{folder.name}.txt"
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    teacher = fake_teacher(8)
    return build(source, teacher=teacher, encoder=OtherVectors(teacher), cache=folder, name=name, **settings)


def mark_bad(cache: Path, remote: str, shards: frozenset[str], contract: Contract | None = None) -> None:
    """Note of shards what a pull notes that had the model to compare them with."""
    notes = SampleNotes(Cache(cache), Remote(location_of(remote)).id)
    contract_id = (contract or fake_teacher(8).contract).id
    notes.add({contract_id: replace(notes.of(contract_id), verdict=BAD, bad=shards)})


@contextmanager
def cut_short() -> Iterator[None]:
    """Let a pull inside the block end, as if it were killed, when all files have arrived."""

    class Cut(BaseException):
        pass

    def cut(arrivals: Arrivals) -> None:
        raise Cut

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arrivals, "finish", cut)
        with pytest.raises(Cut):
            yield


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


def objects_of(cache: Path) -> set[str]:
    """Return the digests of all objects that a push of a cache puts on a remote."""
    files = {path: digest for path, digest in content(cache).items() if path != "cache.json"}
    shards = {digest for path, digest in files.items() if "/shards/" in path}
    opened = Cache(cache)
    containers = [opened.container(teacher.contract) for teacher in opened.teachers()]
    indexes = [
        hashlib.sha256(index_bytes(container.open(name), name)).hexdigest()
        for container in containers
        for name in container.names()
    ]
    assert len(set(indexes)) == len(shards)
    return {*files.values(), *indexes}


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


def manifest_bytes(remote: Path | str) -> int:
    """Return the size of all manifests of a remote, which counts for whoever has no copy of them."""
    return sum(len(data) for data in files_of(Path(remote), "manifests").values())


def put_manifest(remote: Path, value: object) -> str:
    """Replace the manifests of a remote by one that says ``value``; return its id."""
    for path in (remote / "manifests").iterdir():
        path.unlink()
    data = value if isinstance(value, bytes) else canonical_json(value)
    digest = hashlib.sha256(data).hexdigest()
    (remote / "manifests" / f"{digest}.json").write_bytes(data)
    return digest


def without_indexes(remote: Path) -> list[dict[str, Any]]:
    """Have a remote's only manifest list no row indexes; return its files."""
    value = manifest_of(remote)
    for file in value["files"]:
        file.pop("index", None)
    put_manifest(remote, value)
    files: list[dict[str, Any]] = value["files"]
    return files


def put_object(remote: Path, data: bytes) -> str:
    """Put an object on a remote; return its digest."""
    digest = hashlib.sha256(data).hexdigest()
    place = remote / "objects" / digest[:2] / digest
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(data)
    return digest


def claims_on(folder: Path, *, stale_seconds: float = 60.0, elsewhere: bool = False) -> Claims:
    """Return claims of this process, or of one on another machine."""
    mark = f"{ELSEWHERE}-1-{new_mark().rpartition('-')[2]}" if elsewhere else new_mark()
    return Claims(Remote(parse_location(str(folder))), stale_seconds, mark)


def make_key(
    folder: Path, name: str, *, pem: bool = False, passphrase: bytes | None = None
) -> tuple[Path, Path]:
    """Write a pair of keys as ssh-keygen or openssl does, and return their files."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    lock = s.BestAvailableEncryption(passphrase) if passphrase else s.NoEncryption()
    formats = (
        (s.PrivateFormat.PKCS8, s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
        if pem
        else (s.PrivateFormat.OpenSSH, s.Encoding.OpenSSH, s.PublicFormat.OpenSSH)
    )
    private, public = folder / name, folder / f"{name}.pub"
    private.write_bytes(key.private_bytes(s.Encoding.PEM, formats[0], lock))
    public.write_bytes(key.public_key().public_bytes(formats[1], formats[2]))
    return private, public


def replace_file(remote: Path, pattern: str, data: bytes) -> str:
    """Put other bytes in the place of the first file that matches, in the manifest too; return its path.

    What is called by its digest gets another name.
    """
    value = manifest_of(remote)
    file = next(file for file in value["files"] if re.search(pattern, file["path"]))
    file.pop("index", None)
    file.update(sha256=put_object(remote, data), bytes=len(data))
    folder, _, name = file["path"].rpartition("/")
    if re.fullmatch(r"[0-9a-f]{64}\.arrow", name):
        file["path"] = f"{folder}/{file['sha256']}.arrow"
    value["files"].sort(key=lambda one: one["path"])
    put_manifest(remote, value)
    path: str = file["path"]
    return path


def object_of(remote: Path, pattern: str) -> Path:
    """Return where the object of the first file lies that matches."""
    file = next(file for file in manifest_of(remote)["files"] if re.search(pattern, file["path"]))
    return remote / "objects" / file["sha256"][:2] / file["sha256"]


def assert_nothing_outside(remote: Path) -> Path:
    """Assert that a pull into ``cache`` beside ``remote`` has left all else alone; return that folder.

    The two lie in ``box``, and a file called ``outside`` beside that; in the cache, where there is one, are
    neither links nor files that were begun.
    """
    box = remote.parent
    assert (box.parent / "outside").read_text() == "untouched"
    assert {path.name for path in box.iterdir()} <= {"remote", "cache"}
    assert {path.name for path in box.parent.iterdir()} == {"box", "outside"}
    for path in (box / "cache").rglob("*"):
        assert not path.is_symlink()
        assert ".tmp-" not in path.name
    return box / "cache"
