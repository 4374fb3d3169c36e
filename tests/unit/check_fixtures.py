"""Sound caches to damage: one of each kind of store, shared by the tests of verify and repair."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from check_helpers import KINDS, build_cache, build_with, copy_of, write_source

from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher


@pytest.fixture(scope="session")
def sound_caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound cache of each kind of store, by kind; not to be changed."""
    folder = tmp_path_factory.mktemp("sound")
    source = write_source(folder)
    return {
        kind: build_cache(folder / kind, source, store=store, codec=codec).folder
        for kind, (store, codec) in KINDS.items()
    }


@pytest.fixture
def fresh(sound_caches: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A function that gives a copy of a sound cache of a kind, to be damaged."""
    return lambda kind: copy_of(sound_caches[kind], tmp_path / kind)


@pytest.fixture(scope="session")
def real_caches(tmp_path_factory: pytest.TempPathFactory, loaded_teacher: Teacher) -> dict[str, Path]:
    """A cache of each kind of store, built with a real encoder, by kind; not to be changed."""
    folder = tmp_path_factory.mktemp("real")
    source = write_source(folder)
    encoder = Encoder(loaded_teacher, compute_dtype="float32", threads=1)
    for kind, (store, codec) in KINDS.items():
        build_with(folder / kind, source, encoder, store=store, codec=codec)
    return {kind: folder / kind for kind in KINDS}
