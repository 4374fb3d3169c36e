"""Storms over small builds, one of each kind for all tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from storm import Report, Storm

from embedcache.testing import sentences

TEXTS = sentences(3000, seed=11)
OTHERS = sentences(1000, seed=12, longest=5)
_MEMORY = Path("/dev/shm")  # noqa: S108 - a folder of its own is made below it


@pytest.fixture(scope="session")
def storm_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder for thousands of small files, in memory where there is such a place.

    A killed process loses nothing that it had handed to the system, so the disk would only slow this down.
    """
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        yield tmp_path_factory.mktemp("storms")
        return
    with tempfile.TemporaryDirectory(prefix="storms-", dir=_MEMORY) as name:
        yield Path(name)


@pytest.fixture(scope="session")
def storm_of(storm_folder: Path) -> Callable[..., Storm]:
    """Return a function that gives the storm over builds into a kind of store.

    Its second argument says whether a corpus is there and replaced, its third how many texts are built.
    """

    @cache
    def make(store: str, replace: bool, rows: int) -> Storm:
        folder = storm_folder / f"{store}-{replace}-{rows}"
        if not replace:
            # Duplicates among the rows: a build must not count them as lost.
            return Storm(folder, [*TEXTS[:rows], *TEXTS[:100]], store=store)
        old_texts = [*TEXTS[: rows // 3], *OTHERS[: rows // 3]]
        old = Storm(folder.with_name(f"{folder.name}-old"), old_texts, store=store)
        return Storm(folder, TEXTS[:rows], begin_with=old.cache, store=store, replace=True)

    def storm(store: str, replace: bool = False, rows: int = len(TEXTS)) -> Storm:
        return make(store, replace, rows)

    return storm


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Iterator[Report]:
    """Return the report of a storm, printed when the test has ended."""
    counted = Report(request.node.name)
    yield counted
    counted.show()
