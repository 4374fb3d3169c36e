"""Sound caches to damage: one of each kind of store, shared by the tests of verify and repair."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_helpers import KINDS, MakeCopy, build_cache, copy_of, write_source


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
def fresh(sound_caches: dict[str, Path], tmp_path: Path) -> MakeCopy:
    """A function that gives a copy of a sound cache of a kind, to be damaged."""
    return lambda kind: copy_of(sound_caches[kind], tmp_path / kind)
