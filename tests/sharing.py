"""Caches to share, remotes in folders, edits of their files, and commands that can be killed."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import building
import forks
import numpy as np
import pytest
from building import write_lines

from embedcache import share
from embedcache.cache import Cache
from embedcache.fsio import canonical_json
from embedcache.share.manifest import digest_in, is_manifest_name, manifest_name, parse_manifest
from embedcache.share.mirror import Mirror
from embedcache.teacher.load import Teacher
from embedcache.testing import FakeEncoder, fake_teacher, sentences

TEXTS = sentences(240, seed=5)
SHARD_ROWS = 40
WHEN = "2026-01-31T12:00:00Z"
HOUR, DAY = 3600.0, 86_400.0

forks.preload("sharing", "s3fs")


def make_cache(
    folder: Path, texts: Sequence[str] = TEXTS[:120], *, teacher: Teacher | None = None, **settings: Any
) -> Cache:
    """Build a cache of ``texts`` with the fake teacher; ``settings`` as those of a build."""
    settings = {"name": "corpus", "shard_rows": SHARD_ROWS, **settings}
    source = folder.parent / "sources" / f"{folder.name}-{settings['name']}.txt"
    source.parent.mkdir(parents=True, exist_ok=True)
    return building.build(write_lines(source, texts), folder, teacher or fake_teacher(8), **settings)


class OtherVectors(FakeEncoder):
    """An encoder of one teacher that gives another one's vectors."""

    def encode(self, texts: Sequence[str]) -> Any:
        return FakeEncoder(fake_teacher(self.teacher.dimension, seed=9)).encode(texts)


def other_vectors(folder: Path, texts: Sequence[str] = TEXTS[:120], **settings: Any) -> Cache:
    """Build a cache whose vectors are another teacher's under the fake teacher's contract."""
    return make_cache(folder, texts, encoder=OtherVectors(fake_teacher(8)), **settings)


def set_teacher(patch: pytest.MonkeyPatch, encoder: FakeEncoder | None = None) -> None:
    """Have pulls find the fake teacher's model on this machine."""
    live = encoder or FakeEncoder(fake_teacher(8))
    # The package has a function of the module's name.
    patch.setattr(sys.modules["embedcache.share.pull"], "local_encoder", lambda *_, **__: live)


def content(cache: str | Path) -> dict[str, str]:
    """Return path -> sha256 of all that is shared of a cache; shards in LMDB count as files of their own."""
    found = building.content(Path(cache))
    return {re.sub(r"vectors\.mdb#(\w+)", r"shards/\1.arrow", path): digest for path, digest in found.items()}


def objects_of(cache: Path) -> set[str]:
    """Return the digests of the objects that a push of a cache puts on a remote."""
    opened = Cache(cache)
    files = content(cache)
    del files["cache.json"]
    shards = [shard for one in opened.teachers() for shard in opened.store(one.contract).shards]
    return {*files.values(), *(hashlib.sha256(shard.keys.tobytes()).hexdigest() for shard in shards)}


# What lies on a remote


def objects_in(remote: str | Path) -> dict[str, Path]:
    """Return the objects on a remote: sha256 -> file. A server's own unfinished files have other names."""
    return {path.name: path for path in Path(remote).glob("objects/??/*") if len(path.name) == 64}


def manifests_of(remote: str | Path) -> list[dict[str, Any]]:
    """Return the manifests of a remote, in the order they were written."""
    return [json.loads(path.read_bytes()) for path in _written(remote)]


def digests_of(remote: str | Path) -> list[str]:
    """Return the digests of the manifests of a remote, in the order they were written."""
    return [digest_in(path.name) for path in _written(remote)]


def _written(remote: str | Path) -> list[Path]:
    return sorted(Path(remote).glob("manifests/*"), key=lambda path: path.stat().st_mtime_ns)


def listed_by(remote: str | Path) -> dict[str, int]:
    """Return what the manifests of a remote list: sha256 -> bytes; key lists included."""
    manifests = [parse_manifest(path.name, path.read_bytes()) for path in _written(remote)]
    return {sha256: size for manifest in manifests for sha256, size in manifest.objects().items()}


def assert_objects_whole(remote: Path) -> set[str]:
    """Assert that every object on a remote has the bytes its name says; return the names."""
    objects = objects_in(remote)
    for name, path in objects.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == name
    return set(objects)


def assert_live_whole(remote: Path, *, skip_unfinished: bool = False) -> int:
    """Assert that every manifest on a remote lists whole objects; return how many manifests there are."""
    count = 0
    for path in remote.glob("manifests/*"):
        if is_manifest_name(path.name):
            written = path.read_bytes()
            if skip_unfinished and hashlib.sha256(written).hexdigest() != digest_in(path.name):
                continue
            for sha256, size in parse_manifest(path.name, written).objects().items():
                data = (remote / "objects" / sha256[:2] / sha256).read_bytes()
                assert (len(data), hashlib.sha256(data).hexdigest()) == (size, sha256)
            count += 1
    return count


# Changes to it


def put_manifest(remote: str | Path, value: object, when: str = WHEN, *, alone: bool = True) -> str:
    """Put a manifest on a remote, in place of all others unless ``alone`` is false; return its digest."""
    folder = Path(remote) / "manifests"
    for path in folder.iterdir() if alone else ():
        path.unlink()
    data = value if isinstance(value, bytes) else canonical_json(value)
    name = manifest_name(data, when)
    (folder / name).write_bytes(data)
    return digest_in(name)


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
    """Give a file other bytes, in the manifest too, and the path that they deserve; return that."""

    def replace(file: dict[str, Any]) -> None:
        before = file["sha256"]
        data = change(objects_in(remote)[before].read_bytes())
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


# Commands in separate processes


def start(command: str, *arguments: object, **settings: object) -> BaseProcess:
    """Start a function of ``embedcache.share`` in a separate process.

    Args:
        command: its name.
        arguments, settings: its arguments; ``at`` names a file that is waited for, ``report`` one that gets
            how much was sent.
    """
    return forks.start(_run, dict(os.environ), command, arguments, settings)


def _run(
    environment: dict[str, str], command: str, arguments: Sequence[Any], settings: dict[str, Any]
) -> None:
    os.environ.update(environment)
    at, report = settings.pop("at", None), settings.pop("report", None)
    while at is not None and not at.exists():
        time.sleep(0.002)
    done = getattr(share, command)(*arguments, **settings)
    if report is not None:
        report.write_text(str(done.sent))


def gather_windows(remote: str, folder: Path, limit: int, seed: int) -> None:
    """Read the rows of two shards at a time through a mirror, and see that a row never changes."""
    with Mirror.open(remote, folder, limit=limit) as mirror:
        store: Any = mirror.store(mirror.cache.teacher().contract)
        generator, first = np.random.default_rng(seed), dict[int, Any]()
        for _ in range(10):
            shards = generator.choice(12, 2, replace=False)
            store.want(shards[:1].tolist(), shards[1:].tolist())
            rows = np.flatnonzero(np.isin(store.shards_at(np.arange(600)), shards))
            for row, vector in zip(rows.tolist(), store.gather(rows), strict=True):
                assert np.array_equal(first.setdefault(row, vector), vector)
