"""Merging caches whose names stand for different things: corpora, views, teachers; and their other files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from catalog_helpers import add_corpus, add_view
from merge_helpers import CONTRACT, TEXTS, cache_of, files, other_vectors, vectors_of

from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.contract import Contract
from embedcache.corpus.view_record import VIEWS
from embedcache.derived import PROJECTION, extend, read_projection, write_derived
from embedcache.errors import InputError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.merge import MergeConflictError, merge_caches
from embedcache.testing import example_contract
from embedcache.token_table import TokenTable, table_path

OTHER = example_contract(8, prompt="query: ")


def two(folder: Path, **second: object) -> list[Path]:
    """Make two caches with the corpus ``words``; of the second, ``second`` changes something."""
    settings: dict[str, object] = {"corpus": ("words", TEXTS[:40]), **second}
    cache_of(folder / "a", [vectors_of(TEXTS[:40])], corpus=("words", TEXTS[:40]))
    cache_of(folder / "b", [vectors_of(TEXTS[20:60])], **settings)  # type: ignore[arg-type]
    return [folder / "a", folder / "b"]


def name_of(corpus_digest: str) -> str:
    return f"words-{corpus_digest[:8]}"


def test_the_same_corpus_is_taken_once_with_the_views_of_both(tmp_path: Path) -> None:
    caches = two(tmp_path)
    add_view(Cache(caches[0]).corpus(), "crop")
    add_view(Cache(caches[1]).corpus(), "delete-one-word")
    done = merge_caches(caches, tmp_path / "all")
    assert done.conflicts == ()
    assert Cache(tmp_path / "all").corpus().view_names() == ["crop", "delete-one-word"]
    assert verify(tmp_path / "all").damage == []


def test_another_corpus_of_the_name_is_refused(tmp_path: Path) -> None:
    caches = two(tmp_path, corpus=("words", TEXTS[:41]))
    with pytest.raises(
        MergeConflictError, match=r"corpus 'words': .*a has 40 rows, .*b has 41 rows.*--prefer.*--keep-both"
    ):
        merge_caches(caches, tmp_path / "all")
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize(("prefer", "rows"), [("first", 40), ("last", 41)])
def test_the_preferred_corpus_has_the_name(tmp_path: Path, prefer: str, rows: int) -> None:
    caches = two(tmp_path, corpus=("words", TEXTS[:41]))
    add_view(Cache(caches[0]).corpus(), "crop")
    done = merge_caches(caches, tmp_path / "all", prefer=prefer)
    merged = Cache(tmp_path / "all")
    assert merged.corpus_names() == ["words"]
    assert len(merged.corpus()) == rows
    # Views go with their corpus.
    assert merged.corpus().view_names() == (["crop"] if rows == 40 else [])
    assert "left out" in done.conflicts[0].answer


def test_both_corpora_are_kept_under_two_names(tmp_path: Path) -> None:
    caches = two(tmp_path, corpus=("words", TEXTS[:41]))
    loser = Cache(caches[1]).corpus()
    add_view(loser, "crop")
    done = merge_caches(caches, tmp_path / "all", keep_both=True)
    merged = Cache(tmp_path / "all")
    other = name_of(loser.info.digest)
    assert merged.corpus_names() == ["words", other]
    assert len(merged.corpus("words")) == 40
    kept = merged.corpus(other)
    assert kept.info.digest == loser.info.digest
    assert kept.view("crop").texts() == loser.view("crop").texts()
    assert f"kept as {other}" in done.conflicts[0].answer
    assert verify(merged.folder).damage == []
    before = files(merged.folder)
    assert merge_caches(caches, tmp_path / "all", keep_both=True).files == 0
    assert files(merged.folder) == before


def test_a_corpus_that_was_there_makes_way_and_is_kept(tmp_path: Path) -> None:
    a, b = two(tmp_path, corpus=("words", TEXTS[:41]))
    old = Cache(a).corpus()
    view = add_view(old, "crop").texts()
    merge_caches([b], a, prefer="last", keep_both=True)
    merged = Cache(a)
    assert len(merged.corpus("words")) == 41
    assert merged.corpus("words").view_names() == []
    kept = merged.corpus(name_of(old.info.digest))
    assert kept.texts() == TEXTS[:40]
    assert kept.view("crop").texts() == view
    assert verify(a).damage == []


def test_both_names_taken_is_an_error(tmp_path: Path) -> None:
    a, b = two(tmp_path, corpus=("words", TEXTS[:41]))
    add_corpus(Cache(a), name_of(Cache(b).corpus().info.digest), TEXTS[:3])
    with pytest.raises(InputError, match="as another one is: take that away with 'embedcache rm corpus'"):
        merge_caches([a, b], tmp_path / "all", keep_both=True)
    assert not (tmp_path / "all").exists()


@pytest.mark.parametrize("prefer", ["first", "last"])
def test_views_of_one_name_by_two_recipes(tmp_path: Path, prefer: str) -> None:
    caches = two(tmp_path)
    views = [
        add_view(Cache(one).corpus(), f"short={spec}").texts()
        for one, spec in zip(caches, ("crop", "crop:0.5"), strict=True)
    ]
    with pytest.raises(MergeConflictError, match=r"view 'words/short': .*share 0.1.*share 0.5"):
        merge_caches(caches, tmp_path / "none")
    merge_caches(caches, tmp_path / "one", prefer=prefer)
    winner = 0 if prefer == "first" else 1
    corpus = Cache(tmp_path / "one").corpus()
    assert corpus.view_names() == ["short"]
    assert corpus.view("short").texts() == views[winner]
    merge_caches(caches, tmp_path / "both", prefer=prefer, keep_both=True)
    corpus = Cache(tmp_path / "both").corpus()
    assert len(corpus.view_names()) == 2
    assert corpus.view("short").texts() == views[winner]
    (other,) = [name for name in corpus.view_names() if name != "short"]
    assert corpus.view(other).texts() == views[1 - winner]
    assert corpus.view(other).recipe.name == other
    assert verify(tmp_path / "both").damage == []


def test_a_view_that_was_there_makes_way(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    old = add_view(Cache(a).corpus(), "short=crop").texts()
    new = add_view(Cache(b).corpus(), "short=crop:0.5").texts()
    merge_caches([b], a, prefer=b, keep_both=True)
    corpus = Cache(a).corpus()
    assert corpus.view("short").texts() == new
    assert [view.texts() for view in corpus.views() if view.name != "short"] == [old]
    assert verify(a).damage == []


def test_views_of_other_rows_are_left_out_and_told_of(tmp_path: Path) -> None:
    caches = two(tmp_path)
    view = add_view(Cache(caches[0]).corpus(), "crop")
    recipe = view.folder / "recipe.json"
    write_sealed_json(recipe, {**read_sealed_json(recipe), "of": "0" * 64})
    done = merge_caches(caches, tmp_path / "all")
    assert any("view 'crop'" in line and "left out" in line for line in done.told)
    assert not (tmp_path / "all" / "corpora" / "words" / VIEWS).exists()


@pytest.mark.parametrize("how", [{"prefer": "last"}, {"keep_both": True}])
def test_a_name_of_two_teachers(tmp_path: Path, how: dict[str, object]) -> None:
    caches = two(tmp_path, contract=OTHER)
    with pytest.raises(MergeConflictError, match=r"teacher name 'tiny': .*prompt"):
        merge_caches(caches, tmp_path / "none")
    done = merge_caches(caches, tmp_path / "all", **how)  # type: ignore[arg-type]
    merged = Cache(tmp_path / "all")
    winner, loser = (CONTRACT, OTHER) if "keep_both" in how else (OTHER, CONTRACT)
    assert merged.teacher("tiny").contract == winner
    assert merged.teacher(f"tiny-{loser.id[:8]}").contract == loser
    # No vector is lost, and none is mixed.
    assert len(merged.store(CONTRACT)) == len(merged.store(OTHER)) == 40
    assert "all vectors of both are kept" in done.conflicts[0].answer
    assert merge_caches(caches, tmp_path / "all", **how).files == 0  # type: ignore[arg-type]


def test_a_teacher_that_was_there_loses_its_name_and_nothing_else(tmp_path: Path) -> None:
    a, b = two(tmp_path, contract=OTHER)
    merge_caches([b], a, prefer=str(b))
    merged = Cache(a)
    assert merged.teacher("tiny").contract == OTHER
    assert merged.teacher(f"tiny-{CONTRACT.id[:8]}").contract == CONTRACT
    assert np.array_equal(merged.lookup(TEXTS[:40], CONTRACT.id), vectors_of(TEXTS[:40]).vectors)
    assert verify(a).damage == []


def test_one_teacher_under_two_names_has_both(tmp_path: Path) -> None:
    caches = two(tmp_path, teacher="little")
    merge_caches(caches, tmp_path / "all")
    assert [one.name for one in Cache(tmp_path / "all").teachers()] == ["little", "tiny"]
    assert len(Cache(tmp_path / "all").store(CONTRACT)) == 60


def test_where_a_model_comes_from_is_told(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    name = b / "teachers" / CONTRACT.id / "names" / "tiny.json"
    write_sealed_json(name, {"spec": "elsewhere/tiny"})
    done = merge_caches([a, b], tmp_path / "all")
    assert any("'elsewhere/tiny'" in line for line in done.told)
    assert Cache(tmp_path / "all").teacher("tiny").origin == {"spec": "tiny"}
    merge_caches([a, b], tmp_path / "other", prefer="last")
    assert Cache(tmp_path / "other").teacher("tiny").origin == {"spec": "elsewhere/tiny"}
    merge_caches([b], a, prefer="last")
    assert Cache(a).teacher("tiny").origin == {"spec": "elsewhere/tiny"}


def test_a_teacher_without_a_name_is_told_of(tmp_path: Path) -> None:
    a, b = two(tmp_path, contract=OTHER, teacher="other")
    (b / "teachers" / OTHER.id / "names" / "other.json").unlink()
    done = merge_caches([a, b], tmp_path / "all")
    assert any(OTHER.id[:12] in line and "has no name" in line for line in done.told)
    assert not (tmp_path / "all" / "teachers" / OTHER.id).exists()


def test_vectors_that_nobody_names_do_not_slip_in(tmp_path: Path) -> None:
    # What a merge that was killed leaves behind has no name yet, and is weighed all the same.
    a, b = two(tmp_path)
    merged = cache_of(tmp_path / "all", [other_vectors(TEXTS[:10])])
    (merged.teacher_folder(CONTRACT) / "names" / "tiny.json").unlink()
    with pytest.raises(MergeConflictError, match="10 texts with two"):
        merge_caches([a, b], tmp_path / "all")


def table(seed: int) -> TokenTable:
    word = np.random.default_rng(seed).normal(size=(5, 4)).astype(np.float32)
    return TokenTable(word, ("a", "b", "c", "d", "e"))


def test_token_embeddings_come_along_and_can_be_disputed(tmp_path: Path) -> None:
    caches = two(tmp_path)
    table(1).write(table_path(caches[1], CONTRACT), CONTRACT)
    merge_caches(caches, tmp_path / "all")
    assert table_path(tmp_path / "all", CONTRACT).read_bytes() == table_path(caches[1], CONTRACT).read_bytes()
    table(2).write(table_path(caches[0], CONTRACT), CONTRACT)
    with pytest.raises(MergeConflictError, match="token embeddings 'tiny'"):
        merge_caches(caches, tmp_path / "none")
    # The one that was there loses.
    merge_caches(caches, tmp_path / "all", prefer=str(caches[0]))
    assert table_path(tmp_path / "all", CONTRACT).read_bytes() == table_path(caches[0], CONTRACT).read_bytes()
    assert verify(tmp_path / "all").damage == []


def projected(folder: Path) -> Contract:
    """Add a projection of a cache's teacher, and return its contract."""
    cache = Cache(folder)
    matrix = np.eye(3, 8, dtype=np.float32)
    teacher = write_derived(cache, cache.teacher("tiny"), "small", matrix, "by hand")
    for _ in extend(cache, teacher, cache.corpus()):
        pass
    return teacher.contract


def test_projections_come_along(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    contract = projected(a)
    merge_caches([a, b], tmp_path / "all")
    merged = Cache(tmp_path / "all")
    assert read_projection(merged, merged.teacher("small")).shape == (3, 8)
    assert np.array_equal(merged.lookup(TEXTS[:40], "small"), Cache(a).lookup(TEXTS[:40], "small"))
    assert verify(merged.folder).damage == []
    assert (merged.teacher_folder(contract) / PROJECTION).exists()


def test_a_note_of_where_the_model_lies_comes_along(tmp_path: Path) -> None:
    a, b = two(tmp_path)
    Cache(b).remember_model(CONTRACT, "/models/tiny")
    merge_caches([a, b], tmp_path / "all")
    merged = Cache(tmp_path / "all")
    assert merged.model_source(merged.teacher()) == "/models/tiny"
