"""Dry runs: the rows and the cost of a build, without writing anything."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import embedcache
from embedcache.building import dry_run
from embedcache.building.build import grouped
from embedcache.building.result import BuildResult
from embedcache.errors import ContractMismatchError, InputError
from embedcache.testing import sentences

TEXTS = sentences(300)
SHORT = sentences(40, seed=1, longest=4)
Run = Callable[..., BuildResult]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dry_run, "PROBE_SECONDS", 0.01)


def corpus_file(folder: Path, texts: list[str], name: str = "corpus.txt") -> Path:
    (folder / name).write_text("".join(f"{text}\n" for text in texts))
    os.utime(folder / name, (1e9, 1e9))
    return folder / name


@pytest.fixture
def run(tmp_path: Path, tiny_teacher: Path) -> Run:
    """Return a function that builds, or only estimates; by default TEXTS into ``tmp_path/cache``."""

    def result(source: Path | None = None, dry: bool = False, **settings: Any) -> BuildResult:
        given = {"teacher": tiny_teacher, "cache": tmp_path / "cache", "device": "cpu", **settings}
        arguments = grouped(given)
        source = source or corpus_file(tmp_path, TEXTS)
        if dry:
            return embedcache.build(source, **arguments, dry_run=True)
        found = embedcache.build(source, **arguments).result
        assert found is not None
        return found

    return result


def counts(found: BuildResult) -> tuple[int, ...]:
    return (found.rows, found.distinct, found.wanted, found.encoded, found.cached)


VIEWS = {"views": ["crop", "delete-words"], "embed_views": ["crop"]}


@pytest.mark.parametrize(
    ("before", "settings"),
    [
        ([{"limit": 200, "name": "other"}], VIEWS),
        ([{"max_length": 9, "teacher_name": "short"}], VIEWS),
    ],
    ids=["overlapping with views", "another length"],
)
def test_counts_are_those_of_the_build_that_follows(
    run: Run, tmp_path: Path, before: list[dict[str, Any]], settings: dict[str, Any]
) -> None:
    source = corpus_file(tmp_path, [*TEXTS[:150], *SHORT, *SHORT[:5], "", "one"])
    for one in before:
        run(source, **one)
    planned = run(source, True, **settings)
    done = run(source, **settings)
    assert counts(planned) == counts(done)
    assert (planned.skipped, planned.example) == (done.skipped, done.example)
    assert (planned.estimate is None) is (done.encoded == 0)
    assert planned.dry_run
    assert run(source, True, **settings).encoded == 0


def test_nothing_is_written(run: Run, tmp_path: Path) -> None:
    run(None, True, views=["crop"], embed_views=["crop"])
    assert not (tmp_path / "cache").exists()
    run(limit=20, name="other")
    before = sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    run(None, True, views=["crop"], embed_views=["crop"])
    assert sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file()) == before


@pytest.mark.parametrize("codec", ["float16", "pq"])
def test_bytes_are_those_on_disk(run: Run, tmp_path: Path, codec: str) -> None:
    planned, done = run(None, True, codec=codec), run(codec=codec)
    assert planned.estimate is not None
    books = sum(path.stat().st_size for path in tmp_path.glob("cache/teachers/*/codebooks/*"))
    assert done.bytes_written + books == pytest.approx(planned.estimate.bytes[codec], abs=3000)


def test_tokens_are_counted_or_sampled(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    exactly = run(None, True).estimate
    monkeypatch.setattr(dry_run, "SAMPLE_TEXTS", 100)
    sampled = run(None, True).estimate
    assert exactly is not None
    assert sampled is not None
    assert exactly.tokens == run().tokens
    assert sampled.tokens == pytest.approx(exactly.tokens, rel=0.1)
    assert exactly.seconds > 0


def test_a_dry_run_refuses_the_same_as_a_build(run: Run, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="256"):
        run(None, True, codec="pq", limit=20)
    run(limit=20)
    with pytest.raises(ContractMismatchError, match="max_length"):
        run(None, True, max_length=9)
    with pytest.raises(InputError, match="column"):
        run(None, True, text_column="x")
