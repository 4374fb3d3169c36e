"""Rows added to a corpus: it becomes that of one build of all rows, and nothing comes twice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from embedcache.building.build import build
from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.corpus.append import append_rows
from embedcache.corpus.corpus import Corpus
from embedcache.corpus.readers import ReadOptions, ReadReport, read_batches
from embedcache.corpus.sources import find_sources
from embedcache.errors import InputError
from embedcache.missing import is_embedded
from embedcache.testing import FakeEncoder, fake_teacher
from embedcache.views.plan import PlannedView, ViewOptions

READ = ReadOptions(id_column="uid", label_column="label")


def rows(first: int, last: int) -> list[dict[str, Any]]:
    """Return rows of a text, an id and a label."""
    return [{"text": f"row {n} of them", "uid": f"id-{n}", "label": str(n % 3)} for n in range(first, last)]


def write(path: Path, found: list[dict[str, Any]]) -> Path:
    lines = ["text,uid,label", *(",".join(map(str, row.values())) for row in found)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    os.utime(path, (1e9, 1e9))
    return path


@pytest.fixture
def encoder() -> FakeEncoder:
    return FakeEncoder(fake_teacher(16))


def state(cache: Cache) -> tuple[Any, ...]:
    """Return all that a corpus is: its files, texts, ids and labels, and the texts of its views."""
    corpus = cache.corpus("c")
    views = {view.name: (view.info.digest, view.record.counts, view.texts()) for view in corpus.views()}
    return corpus.info, corpus.texts(), corpus.ids(), corpus.labels(), views


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=2, max_size=4), st.integers(1, 20))
def test_build_and_appends_give_the_corpus_of_one_build_of_all_rows(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], part_rows: int
) -> None:
    folder, edges = tmp_path_factory.mktemp("c"), np.cumsum([0, *sizes]).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("embedcache.corpus.part.PART_ROWS", part_rows)
        options: dict[str, Any] = {"teacher": FakeEncoder(fake_teacher(16)), "name": "c", "read": READ}
        options["views"] = ["crop", "delete-words"]
        for number, (first, last) in enumerate(pairwise(edges)):
            grown = build(rows(first, last), cache=folder / "grown", append=number > 0, **options)
        whole = build(rows(0, edges[-1]), cache=folder / "whole", **options)
        assert state(grown) == state(whole)


def test_only_the_rows_that_were_added_are_encoded_and_the_same_command_adds_nothing_twice(
    tmp_path: Path, encoder: FakeEncoder
) -> None:
    options: dict[str, Any] = {"teacher": encoder, "cache": tmp_path / "k", "name": "c", "read": READ}
    build(write(tmp_path / "one.csv", rows(0, 30)), **options)
    more = write(tmp_path / "more.csv", rows(30, 40))
    cache = build(more, append=True, **options)
    assert (cache.result.added, cache.result.rows, cache.result.encoded) == (10, 40, 10)
    before = state(cache)
    for source in (more, rows(30, 40), iter(rows(30, 40))):  # from its note, and compared by content
        cache = build(source, append=True, **options)
        assert (cache.result.added, cache.result.rows, cache.result.encoded) == (0, 40, 0)
        assert state(cache) == before
    # The file alone is another corpus than the one that it was added to.
    with pytest.raises(InputError, match="other rows"):
        build(more, **options)


def test_a_series_of_appends_repeated_adds_nothing_and_a_file_that_has_grown_its_new_rows(
    tmp_path: Path, encoder: FakeEncoder
) -> None:
    options: dict[str, Any] = {"teacher": encoder, "cache": tmp_path / "k", "name": "c", "read": READ}
    edges = [(0, 30), (30, 45), (45, 50)]
    for first, last in edges * 2:
        cache = build(rows(first, last), append=True, **options)
    assert cache.result.rows == 50
    for grown, added in ((rows(45, 55), 5), (rows(0, 61), 6)):
        skipped = [{**grown[0], "text": ""}, *grown]
        cache = build(skipped, append=True, on_bad="skip", **options)
        assert cache.result.added == added
    whole = build(
        [{**rows(0, 1)[0], "text": ""}, *rows(0, 61)], on_bad="skip", **{**options, "cache": tmp_path / "w"}
    )
    assert state(cache) == state(whole)
    # The first file alone is told from a corpus of other rows.
    with pytest.raises(InputError, match="these 30 rows and 31 more"):
        build(rows(0, 30), **options)


@pytest.mark.parametrize("numbers", [[0.5], [0.0, 0.5], [2**70], ["1"], [""]], ids=str)
def test_labels_of_another_type_are_refused_and_the_corpus_stays(
    tmp_path: Path, encoder: FakeEncoder, numbers: list[object]
) -> None:
    options: dict[str, Any] = {"teacher": encoder, "cache": tmp_path / "k", "name": "c", "label_column": "y"}
    build([{"text": "one", "y": 1}, {"text": "two", "y": 2}], **options)
    with pytest.raises(InputError, match="label"):
        build([{"text": f"more {n}", "y": n} for n in numbers], append=True, **options)
    assert Cache(tmp_path / "k").corpus("c").labels() == [1, 2]
    options["name"] = "fractions"
    build([{"text": "one", "y": 0.5}], **options)
    assert build([{"text": "two", "y": 1}], append=True, **options).corpus("fractions").labels() == [0.5, 1.0]


def test_single_texts_and_pairs_are_not_mixed(tmp_path: Path, encoder: FakeEncoder) -> None:
    options: dict[str, Any] = {"teacher": encoder, "cache": tmp_path / "k", "name": "c"}
    build(["one", "two"], **options)
    with pytest.raises(InputError, match="single texts"):
        build([{"a": "x", "b": "y"}], append=True, text_column="a", text2_column="b", **options)


def test_rows_added_to_an_embedded_view_are_encoded_too(tmp_path: Path, encoder: FakeEncoder) -> None:
    options: dict[str, Any] = {"teacher": encoder, "cache": tmp_path / "k", "name": "c"}
    build(rows(0, 30), views=ViewOptions(["delete-one-word", "crop"], embed=["delete-one-word"]), **options)
    cache = build(rows(30, 90), append=True, **options)
    store = cache.store(encoder.teacher.contract)
    embedded = {view.name: is_embedded(view, store) for view in cache.corpus("c").views()}
    assert embedded == {"crop": False, "delete-one-word": True}
    assert (store.locate(next(cache.corpus("c").view("delete-one-word").iter_keys())) >= 0).all()


def test_a_view_of_a_column_is_known_to_fit_before_rows_are_added(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"teacher": encoder, "cache": tmp_path / "k", "name": "c"}
    files = [write(tmp_path / f"{first}.csv", rows(first, first + 10)) for first in (0, 10, 20)]
    build(files[0], **options)
    with pytest.raises(InputError, match="every row"):
        build(files[1], append=True, views=["uid=column:uid"], **options)
    assert len(Cache(tmp_path / "k").corpus("c")) == 10
    build(files[0], views=["uid=column:uid"], **options)
    with monkeypatch.context() as patch:  # a kill between the corpus and its view
        patch.setattr("embedcache.building.build.make_views", lambda *given, **named: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            build(files[1], append=True, **options)
    with pytest.raises(InputError, match="interrupted"):
        build(files[2], append=True, **options)
    for file in files[1:]:
        cache = build(file, append=True, **options)
    assert cache.corpus("c").view("uid").texts() == [f"id-{n}" for n in range(30)]


def test_appending_to_what_is_not_there_builds_it(tmp_path: Path, encoder: FakeEncoder) -> None:
    cache = build(rows(0, 9), teacher=encoder, cache=tmp_path / "k", name="c", append=True)
    assert (cache.result.added, cache.result.rows) == (9, 9)


def test_views_are_extended_unasked_and_what_was_made_is_not_made_again(
    tmp_path: Path, encoder: FakeEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"teacher": encoder, "cache": tmp_path / "k", "name": "c"}
    build(write(tmp_path / "one.csv", rows(0, 30)), views=["crop", "uid=column:uid"], **options)
    made: list[str] = []
    plain = PlannedView.maker.func  # type: ignore[attr-defined]

    def maker(view: PlannedView) -> Any:
        return lambda texts: made.extend(texts) or plain(view)(texts)

    monkeypatch.setattr(PlannedView, "maker", property(maker))
    cache = build(write(tmp_path / "more.csv", rows(30, 40)), append=True, **options)
    assert made == [row["text"] for row in rows(30, 40)]
    views = {view.name: view.texts() for view in cache.corpus("c").views()}
    assert views["uid"] == [f"id-{n}" for n in range(40)]
    assert len(views["crop"]) == 40


def test_what_does_not_fit_the_corpus_is_refused_and_changes_nothing(
    tmp_path: Path, encoder: FakeEncoder
) -> None:
    options: dict[str, Any] = {"teacher": encoder, "cache": tmp_path / "k"}
    build(rows(0, 9), name="c", read=READ, **options)
    for given_too, words in (
        ({"name": "c"}, "has ids: give id_column"),
        ({}, "no name"),
        ({"name": "c", "overwrite": True}, "overwrite"),
    ):
        with pytest.raises(InputError, match=words):
            build(rows(9, 12), append=True, **given_too, **options)
    with pytest.raises(InputError, match="more than once"):
        build([*rows(3, 4), *rows(9, 12)], append=True, name="c", read=READ, **options)
    assert len(Cache(tmp_path / "k").corpus("c")) == 9


def test_a_corpus_that_another_process_changed_meanwhile_loses_no_rows(
    tmp_path: Path, encoder: FakeEncoder
) -> None:
    cache = build(rows(0, 9), teacher=encoder, cache=tmp_path / "k", name="c")
    old = cache.corpus("c")
    build(rows(9, 12), teacher=encoder, cache=tmp_path / "k", name="c", append=True)
    report = ReadReport()
    batches = read_batches(find_sources(rows(12, 15)), ReadOptions(), report)
    with pytest.raises(InputError, match="another process"):
        append_rows(old, cache.corpora_folder, batches, report)
    assert len(Cache(tmp_path / "k").corpus("c")) == 12


def test_two_processes_that_add_rows_at_once_lose_none(tmp_path: Path, encoder: FakeEncoder) -> None:
    cache = build(rows(0, 9), teacher=encoder, cache=tmp_path / "k", name="c")
    old = cache.corpus("c")

    def add(first: int, meanwhile: Callable[[], object]) -> Corpus:
        report = ReadReport()
        batches = read_batches(find_sources(rows(first, first + 3)), ReadOptions(), report)
        return append_rows(old, cache.corpora_folder, batches, report, lambda: meanwhile() and None)

    with ThreadPoolExecutor(1) as pool:
        others = list[Future[Corpus]]()

        def meanwhile() -> None:  # between the look at the corpus and its change
            others.append(pool.submit(add, 12, lambda: None))
            time.sleep(0.3)

        add(9, meanwhile)
        assert isinstance(others[0].exception(), InputError)
    assert cache.corpus("c").texts() == [row["text"] for row in rows(0, 12)]
    # The same rows from both, as from the parts of a build, are no conflict.
    assert len(add(9, lambda: None)) == 12


def test_a_dry_run_of_an_append_counts_the_rows_to_add_and_writes_nothing(
    tmp_path: Path, tiny_teacher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embedcache.building.dry_run.PROBE_SECONDS", 0.01)
    options: dict[str, Any] = {"teacher": str(tiny_teacher), "cache": tmp_path / "k", "name": "c"}
    build(rows(0, 30), **options)
    result = build(rows(30, 40), append=True, dry_run=True, **options)
    assert (result.rows, result.added, result.encoded) == (40, 10, 10)
    assert len(Cache(tmp_path / "k").corpus("c")) == 30


def test_the_command_says_how_many_rows_were_added(tmp_path: Path, tiny_teacher: Path) -> None:
    words = ["--teacher", str(tiny_teacher), "--cache", str(tmp_path / "k"), "--name", "c"]
    for name, found, more in (("a", rows(0, 30), []), ("b", rows(30, 40), ["--append"])):
        path = write(tmp_path / f"{name}.csv", found)
        result = CliRunner().invoke(cli, ["build", str(path), *words, *more], catch_exceptions=False)
    assert "40 (10 added)" in result.output
    assert "overwrit" not in result.output
