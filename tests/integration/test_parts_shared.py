"""Caches of parts that push to one remote together equal the cache of one build."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from building import rows_encoded, write_lines
from flat_build import build
from forks import preload, start

from embedcache.share import pull, push
from embedcache.testing import FakeEncoder, fake_teacher, sentences

pytestmark = pytest.mark.integration
preload("flat_build")

TEXTS = sentences(600, seed=3)


def build_and_push(source: Path, cache: Path, part: str, url: str, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    build(source, teacher=FakeEncoder(fake_teacher(16)), cache=cache, part=part, shard_rows=64)
    push(cache, url)


def test_three_caches_of_parts_are_one_remote(place: tuple[str, Path], tmp_path: Path) -> None:
    url, encoder = f"{place[0]}/remote", FakeEncoder(fake_teacher(16))
    source = write_lines(tmp_path / "corpus.txt", TEXTS)
    children = [
        start(build_and_push, source, tmp_path / f"cache{one}", f"{one}/3", url, dict(os.environ))
        for one in (1, 2, 3)
    ]
    for child in children:
        child.join(300)
        assert child.exitcode == 0
    pull(tmp_path / "pulled", url)
    cache = build(source, teacher=encoder, cache=tmp_path / "pulled")
    assert rows_encoded(cache) == 0
    assert len(cache.store(cache.teacher().contract)) == len(TEXTS)
    whole = build(source, teacher=encoder, cache=tmp_path / "whole")
    assert np.array_equal(cache.lookup(TEXTS), whole.lookup(TEXTS))
