"""Parts of a corpus, encoded by separate processes, together equal the cache of one build."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from building import rows_encoded, write_lines
from flat_build import build
from forks import preload, start

from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.missing import KeyPart
from embedcache.testing import FakeEncoder, fake_teacher, sentences
from embedcache.verify import verify

TEXTS = sentences(1000, seed=3)
ENCODER = FakeEncoder(fake_teacher(16))
PARTS = [f"{number}/3" for number in (1, 2, 3)]

preload("flat_build")


def build_part(source: Path, cache: Path, part: str) -> None:
    build(source, teacher=ENCODER, cache=cache, part=part, shard_rows=64)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "corpus.txt", [*TEXTS, *TEXTS[:100]])


@pytest.fixture
def whole(tmp_path: Path, source: Path) -> Cache:
    return build(source, teacher=ENCODER, cache=tmp_path / "whole", shard_rows=64)


def test_parts_of_three_processes_into_one_folder_are_one_build(
    tmp_path: Path, source: Path, whole: Cache
) -> None:
    children = [start(build_part, source, tmp_path / "cache", part) for part in PARTS]
    for child in children:
        child.join(300)
        assert child.exitcode == 0
    assert not verify(tmp_path / "cache").damage
    again = build(source, teacher=ENCODER, cache=tmp_path / "cache")
    assert rows_encoded(again) == 0
    assert again.corpus().info.digest == whole.corpus().info.digest
    assert len(again.store(again.teacher().contract)) == len(TEXTS)
    assert np.array_equal(again.lookup(TEXTS), whole.lookup(TEXTS))


def test_a_part_is_about_its_own_rows_and_their_sum_is_the_whole(
    tmp_path: Path, source: Path, whole: Cache
) -> None:
    cache, wanted = tmp_path / "cache", 0
    for part in PARTS:
        done = build(source, teacher=ENCODER, cache=cache, part=part, shard_rows=64).result
        assert done is not None
        assert (done.part, done.distinct, done.cached, done.encoded) == (part, 1000, 0, done.wanted)
        assert 250 < done.wanted < 420
        wanted += done.wanted
    assert wanted == len(TEXTS)
    again = build(source, teacher=ENCODER, cache=whole.folder, part="2/3").result
    assert again is not None
    assert (again.encoded, again.cached) == (0, again.wanted)


@pytest.mark.parametrize("part", ["0/3", "4/3", "1", "1/0", "a/b", "-1/3", "1/3/5", ""])
def test_other_parts_are_refused(part: str) -> None:
    with pytest.raises(InputError, match="part"):
        KeyPart.parse(part)


def test_parts_learn_no_codebooks_of_their_own(tmp_path: Path, source: Path) -> None:
    cache = tmp_path / "cache"
    for dry_run in (True, False):
        with pytest.raises(InputError, match="pq"):
            build(source, teacher=ENCODER, cache=cache, part="1/3", codec="pq", dry_run=dry_run)
    sample = write_lines(tmp_path / "sample.txt", TEXTS[:300])
    build(sample, teacher=ENCODER, cache=cache, codec="pq")
    for part in PARTS:
        build(source, teacher=ENCODER, cache=cache, part=part)
    assert len(list(cache.glob("teachers/*/codebooks/*"))) == 1
    assert rows_encoded(build(source, teacher=ENCODER, cache=cache)) == 0
