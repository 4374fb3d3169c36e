"""Format version 2 does not change: today's package reads golden caches and writes the same bytes."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from building import content, rows_encoded
from click.testing import CliRunner
from gate_helpers import (
    CACHES,
    GOLDEN,
    PROJECTED,
    READ_ONLY,
    TEACHERS,
    build_fake,
    build_real,
    copied,
    golden,
    recorded_vectors,
)

from embedcache.cache import Cache
from embedcache.cli.main import cli

BUILDS = {"fake": build_fake, "real": build_real}
CORPORA = [(name, corpus) for name in CACHES for corpus in golden()[name]["corpora"]]
REAL_TEACHERS = list(golden()["real"]["teachers"])
VECTORS = [(name, teacher) for name in CACHES for teacher in golden()[name]["teachers"]]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cache]:
    """Return the golden caches, opened, by name; they are only read."""
    folder = tmp_path_factory.mktemp("golden")
    return {name: Cache(copied(name, folder)) for name in CACHES}


@pytest.fixture(scope="module")
def built_again(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives the folder of a golden cache as it is built today."""

    @functools.cache
    def build(name: str) -> Path:
        cache = tmp_path_factory.mktemp("again") / name
        BUILDS[name](cache)
        return cache

    return build


@pytest.mark.parametrize("name", CACHES)
def test_the_files_are_those_that_were_written(name: str) -> None:
    assert content(GOLDEN / name) == golden()[name]["files"]


@pytest.mark.parametrize(("name", "teacher"), VECTORS)
def test_lookup_gives_the_recorded_vectors(opened: dict[str, Cache], name: str, teacher: str) -> None:
    cache, expected = opened[name], golden()[name]["teachers"][teacher]
    held = cache.teacher(teacher)
    assert (held.name, held.contract.id, held.origin) == (teacher, expected["contract"], expected["origin"])
    texts = [text for corpus in expected["corpora"] for text in cache.corpus(corpus).texts()]
    np.testing.assert_array_equal(cache.lookup(texts, teacher), recorded_vectors(teacher))
    codec = TEACHERS.get(teacher, {}).get("codec", "float32" if name == "real" else "float16")
    assert cache.store(held.contract).codec_name == codec


@pytest.mark.parametrize(("name", "corpus"), CORPORA)
def test_corpora_and_views_give_the_recorded_rows(opened: dict[str, Cache], name: str, corpus: str) -> None:
    found, expected = opened[name].corpus(corpus), golden()[name]["corpora"][corpus]
    assert found.texts() == expected["texts"]
    assert len(found) == len(expected["texts"])
    if expected["ids"] is not None:
        assert found.ids() == expected["ids"]
        assert found.labels() == expected["labels"]
    assert dict(found.info.skipped) == expected["skipped"]
    assert {view: found.view(view).texts() for view in found.view_names()} == expected["views"]


def test_the_vectors_of_an_embedded_view_are_there(opened: dict[str, Cache]) -> None:
    cache = opened["fake"]
    texts = cache.corpus("words").view("crop").texts()
    assert cache.lookup(texts, "halves").shape == (len(texts), 8)


def test_the_token_table_reads(opened: dict[str, Cache]) -> None:
    table, expected = opened["real"].token_table(opened["real"].teacher("model")), golden()["token table"]
    assert list(table.word.shape) == expected["shape"]
    assert list(table.tokens) == expected["tokens"]
    assert hashlib.sha256(np.ascontiguousarray(table.word).tobytes()).hexdigest() == expected["word"]


@pytest.mark.parametrize("name", CACHES)
def test_verify_finds_the_golden_caches_sound(name: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["verify", "--cache", str(copied(name, tmp_path))])
    assert done.exit_code == 0, done.output


def shards_of(name: str, files: dict[str, str], teachers: Iterable[str]) -> set[str]:
    """Return the shards and codebooks of some teachers of a golden cache among ``files``."""
    folders = tuple(
        f"teachers/{golden()[name]['teachers'][one]['contract']}/{kind}/"
        for one in teachers
        for kind in ("shards", "codebooks")
    )
    return {path for path in files if path.startswith(folders)}


@pytest.mark.parametrize(("name", "teachers"), [("fake", [*READ_ONLY, PROJECTED]), ("real", REAL_TEACHERS)])
def test_building_again_gives_the_same_bytes(
    built_again: Callable[[str], Path], name: str, teachers: list[str]
) -> None:
    """All but the shards of vectors that a machine computes, or that are only read today.

    Forward passes and projections end with products of matrices, whose last bit is the linear algebra
    library's. Their vectors are compared below.
    """
    found, expected = content(built_again(name)), golden()[name]["files"]
    apart = [shards_of(name, files, teachers) for files in (found, expected)]
    assert all(apart)
    for files, some in zip((found, expected), apart, strict=True):
        for path in some:
            del files[path]
    assert found == expected


@pytest.mark.parametrize(("name", "teacher"), [one for one in VECTORS if one[1] not in READ_ONLY])
def test_building_again_gives_the_same_vectors(
    built_again: Callable[[str], Path], name: str, teacher: str
) -> None:
    cache = Cache(built_again(name))
    corpora = golden()[name]["teachers"][teacher]["corpora"]
    texts = [text for corpus in corpora for text in cache.corpus(corpus).texts()]
    np.testing.assert_allclose(cache.lookup(texts, teacher), recorded_vectors(teacher), atol=1e-3)


def test_the_seal_of_an_lmdb_store_lists_its_shards(built_again: Callable[[str], Path]) -> None:
    folders = (GOLDEN / "fake", built_again("fake"))
    old, new = (json.loads(next(one.glob("teachers/*/vectors.seal.json")).read_text()) for one in folders)
    assert old.keys() == new.keys()
    assert old["shards"] == new["shards"]


@pytest.mark.parametrize("name", CACHES)
def test_a_build_over_a_golden_cache_encodes_nothing(name: str, tmp_path: Path) -> None:
    cache = copied(name, tmp_path)
    assert {rows_encoded(done) for done in BUILDS[name](cache)} == {0}
    assert content(cache) == golden()[name]["files"]
