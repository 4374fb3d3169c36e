"""Fixtures for every test: a tiny teacher on disk, and the flag for slow tests."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from embedcache.teacher.load import Teacher


# Which examples are tried must not depend on the day, nor a verdict on how busy the machine is.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow: add --slow to run it")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collections: a million objects, each time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a sentence-transformers folder of a tiny BERT; read it, never write into it."""
    from embedcache.testing import tiny_encoder

    return tiny_encoder(tmp_path_factory.mktemp("teachers") / "tiny")


@pytest.fixture(scope="session")
def plain_teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a plain transformers folder of a tiny BERT; read it, never write into it."""
    from embedcache.testing import tiny_encoder

    return tiny_encoder(tmp_path_factory.mktemp("teachers") / "plain", plain=True)


@pytest.fixture(scope="session")
def loaded_teacher(tiny_teacher: Path) -> Teacher:
    """Return the tiny teacher, loaded once; leave it as it is."""
    from embedcache.teacher.load import load_teacher

    return load_teacher(tiny_teacher, device="cpu")
