"""Sound caches to damage: one of each kind, shared by the tests of verify and repair."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from check_helpers import MakeCopy, build_caches


@pytest.fixture(scope="session")
def sound_caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A sound cache of each kind, by kind; not to be changed."""
    return build_caches(tmp_path_factory.mktemp("sound"))


@pytest.fixture
def fresh(sound_caches: dict[str, Path], tmp_path: Path) -> MakeCopy:
    """A function that gives a copy of a sound cache of a kind, to be damaged."""
    return lambda kind: Path(shutil.copytree(sound_caches[kind], tmp_path / kind))
