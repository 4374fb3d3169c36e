"""Caches to share, checks of a remote's folder, and commands in processes that can be killed."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import time
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from embedcache import share
from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.share.manifest import digest_in, is_manifest_name, parse_manifest
from embedcache.testing import FakeEncoder, fake_teacher

DAY = 86_400.0
# Forks of a process that has imported everything and has no threads.
_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(["shared_caches", "s3fs"])


def make_cache(
    folder: Path, texts: Sequence[str], *, name: str = "corpus", dimension: int = 8, shard_rows: int = 64
) -> Path:
    """Build a cache of ``texts`` with the fake teacher; return its folder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    source = folder.with_name(f"{folder.name}.txt")
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    teacher = fake_teacher(dimension)
    build(
        source,
        teacher=teacher,
        encoder=FakeEncoder(teacher),  # type: ignore[arg-type]  # does as well here
        cache=folder,
        name=name,
        shard_rows=shard_rows,
    )
    return folder


def content(cache: Path) -> dict[str, str]:
    """Return path -> sha256 of the files of a cache, without derived and unfinished ones."""
    found = {}
    for path in sorted(cache.rglob("*")):
        inside = path.relative_to(cache).as_posix()
        if path.is_file() and not inside.startswith("derived/") and "/.tmp-" not in f"/{inside}":
            found[inside] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def objects_of(cache: Path) -> set[str]:
    """Return the digests of the objects that a push of a cache puts on a remote."""
    opened = Cache(cache)
    files = content(cache)
    del files["cache.json"]
    shards = [shard for one in opened.teachers() for shard in opened.store(one.contract).shards]
    return {*files.values(), *(hashlib.sha256(shard.keys.tobytes()).hexdigest() for shard in shards)}


def objects_in(folder: Path) -> list[str]:
    """Return the digests of the objects in the folder of a remote; each is checked."""
    found = []
    for path in folder.glob("objects/??/*"):
        # A server's own unfinished files have other names.
        if len(path.name) == 64:
            assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
            found.append(path.name)
    return found


def assert_live_whole(folder: Path, *, skip_unfinished: bool = False) -> int:
    """Assert that every manifest in the folder of a remote lists whole objects; return how many there are."""
    count = 0
    for path in folder.glob("manifests/*"):
        if is_manifest_name(path.name):
            written = path.read_bytes()
            if skip_unfinished and hashlib.sha256(written).hexdigest() != digest_in(path.name):
                continue
            for sha256, size in parse_manifest(path.name, written).objects().items():
                data = (folder / "objects" / sha256[:2] / sha256).read_bytes()
                assert len(data) == size
                assert hashlib.sha256(data).hexdigest() == sha256
            count += 1
    return count


def start(command: str, *arguments: object, **settings: object) -> BaseProcess:
    """Start a function of :mod:`embedcache.share` in a process of its own.

    Args:
        command: its name.
        arguments, settings: its arguments; ``at`` names a file that is waited for, ``report`` one that gets
            what the command says.
    """
    process = _FORKS.Process(target=_run, args=(dict(os.environ), command, arguments, settings))
    process.start()
    return process


def _run(
    environment: Mapping[str, str], command: str, arguments: Sequence[Any], settings: dict[str, Any]
) -> None:
    os.environ.update(environment)
    at, report = settings.pop("at", None), settings.pop("report", None)
    while at is not None and not at.exists():
        time.sleep(0.002)
    done = getattr(share, command)(*arguments, **settings)
    if report is not None:
        report.write_text(str(getattr(done, "sent", "")))
