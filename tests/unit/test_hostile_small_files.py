"""Small files from a stranger: absurd contracts, JSON that explodes, and code that waits to be run."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from hostile_helpers import (
    EVERYTHING,
    KINDS,
    NAMING_A_TEACHER,
    OPENING,
    READING_A_CORPUS,
    Fires,
    honest,
    judge,
    one,
    received,
    recontract,
    reseal,
)

from embedcache.fsio import write_sealed_json

# Absurd small files


@pytest.mark.parametrize("shards", [True, False], ids=["with-shards", "without"])
@pytest.mark.parametrize(
    "changes",
    [
        {"dimension": 0},
        {"dimension": -1},
        {"dimension": 2**31},
        {"dimension": 10**30},
        {"max_length": -1},
        {"max_length": 10**30},
        {"truncate_dim": -5},
        {"truncate_dim": 10**4000},
    ],
    ids=lambda changes: str(changes)[:24],
)
def test_an_absurd_contract_is_refused(tmp_path: Path, changes: dict[str, object], shards: bool) -> None:
    cache = received(tmp_path)
    recontract(cache, shards=shards, **changes)
    judge(cache, EVERYTHING).assert_refused(
        NAMING_A_TEACHER, "was not written by embedcache", "delete its folder"
    )


def test_a_contract_of_text_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path)
    contract = one(cache, "teachers/*/contract.json")
    value = {**json.loads(contract.read_text()), "pooling": "\ud800"}
    contract.write_text(json.dumps(value))
    judge(cache).assert_refused(NAMING_A_TEACHER, "is damaged", "repair")


BOMBS = {
    "deep": b"[" * 100_000,
    "just-too-deep": b'{"a":' * 300 + b"1" + b"}" * 300,
    "large": b'{"version":2,"sha256":"0","a":[' + b"[]," * 9_000_000 + b"0]}",
    "digits": b'{"version":' + b"9" * 1_000_000 + b"}",
    "binary": bytes(range(256)),
}
SMALL_FILES = {
    "cache.json": OPENING,
    "corpora/words/corpus.json": READING_A_CORPUS,
    "teachers/*/contract.json": NAMING_A_TEACHER,
    "teachers/*/names/*.json": NAMING_A_TEACHER,
    "derived/index/*/checked.bin": frozenset(),
    "derived/sources/words.json": frozenset(),
}


@pytest.mark.parametrize("bomb", BOMBS)
@pytest.mark.parametrize("place", SMALL_FILES)
def test_a_small_file_that_is_none_is_refused(tmp_path: Path, place: str, bomb: str) -> None:
    cache = received(tmp_path)
    one(cache, place).write_bytes(BOMBS[bomb])
    judge(cache).assert_refused(SMALL_FILES[place])


@pytest.mark.parametrize("element", [b"[],", b'{"a":1},', b"1,"])
@pytest.mark.parametrize("place", [pytest.param(place, marks=pytest.mark.slow) for place in SMALL_FILES])
def test_json_that_unpacks_to_much_is_refused_in_time(tmp_path: Path, place: str, element: bytes) -> None:
    cache = received(tmp_path)
    one(cache, place).write_bytes(
        b'{"version":2,"sha256":"0","a":[' + element * (4_100_000 // len(element)) + b"0]}"
    )
    judge(cache, EVERYTHING).assert_refused(SMALL_FILES[place])


def test_much_json_is_refused_in_time(tmp_path: Path) -> None:
    cache = received(tmp_path)
    one(cache, "teachers/*/names/*.json").write_bytes(b'{"sha256":"0","a":[' + b'{"a":1},' * 500_000 + b"0]}")
    judge(cache, {"open"}).assert_refused({"open"}, "its digest", "repair")


def test_a_nested_origin_is_refused(tmp_path: Path) -> None:
    cache = received(tmp_path)
    write_sealed_json(one(cache, "teachers/*/names/*.json"), {"spec": {"spec": ["fake"]}})
    judge(cache).assert_refused(NAMING_A_TEACHER, "something else than text", "repair")


def test_a_small_part_named_a_million_times_is_no_corpus_of_billions(tmp_path: Path) -> None:
    cache = received(tmp_path)

    def multiplied(value: dict[str, Any]) -> None:
        value.update(parts=value["parts"] * 30_000, rows=value["rows"] * 30_000)

    reseal(cache / "corpora/words/corpus.json", multiplied)
    assert (cache / "corpora/words/corpus.json").stat().st_size < 4 << 20
    judge(cache).assert_refused(READING_A_CORPUS, "names a part twice", "--replace")


# Code that waits to be run


def test_the_pickle_of_these_tests_fires_when_it_is_read(tmp_path: Path) -> None:
    pickle.loads(pickle.dumps(Fires(tmp_path / "fired")))  # noqa: S301 - that is what the test is about
    assert (tmp_path / "fired").is_dir()


@pytest.mark.parametrize("kind", KINDS)
def test_a_pickle_in_the_place_of_any_file_is_not_read(tmp_path: Path, kind: str) -> None:
    files = sorted(path for path in (honest(kind) / "cache").rglob("*") if path.is_file())
    assert len(files) >= 8
    for number, file in enumerate(files):
        cache = received(tmp_path / str(number), kind)
        path = cache / file.relative_to(honest(kind) / "cache")
        path.write_bytes(pickle.dumps(Fires(cache.parent / "fired")))
        judge(cache)
        assert not (cache.parent / "fired").exists()


@pytest.mark.parametrize(
    "place", ["derived/tokens/x/offsets.npy", "derived/more.pkl", "conftest.py", "sitecustomize.py"]
)
def test_code_lying_about_is_not_run(tmp_path: Path, place: str) -> None:
    cache = received(tmp_path)
    path = cache / place
    path.parent.mkdir(parents=True, exist_ok=True)
    code = f"import os; os.mkdir({str(tmp_path / 'fired')!r})".encode()
    path.write_bytes(code if path.suffix == ".py" else pickle.dumps(Fires(tmp_path / "fired")))
    judge(cache).assert_unharmed()
    assert not (tmp_path / "fired").exists()
