"""A teacher's cached vectors are mapped with the labels of a corpus, and the map is a teacher of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from corpus_helpers import cut

import distill.projection
from distill.cli.main import cli
from distill.errors import ConfigError, DataError, TrainingError
from distill.projection import extend_projection, project
from distill.projection.neighbours import label_cosines, neighbour_accuracy
from distill.projection.train import ProjectionSettings, mean_loss, train_map
from embedcache.cache import Cache, CachedTeacher
from embedcache.contract import Contract
from embedcache.corpus.readers import ReadReport
from embedcache.corpus.store import store_corpus
from embedcache.doctor import examine
from embedcache.errors import CorruptCacheError, InputError, MissingVectorsError
from embedcache.keys import key_array
from embedcache.projection import (
    PROJECTION,
    apply_projection,
    base_of,
    is_derived,
    projection_contract,
    read_projection,
    write_derived,
)
from embedcache.store.base import VectorBatch
from embedcache.testing import example_contract, sentences
from embedcache.verify import verify

ROWS, WIDTH = 240, 12
TEXTS = sentences(ROWS, seed=5)
LABELS = ["cold" if number % 3 else "warm" for number in range(ROWS)]
QUICK = ProjectionSettings(batch_size=64, lr=0.02, epochs=4)


def vectors_of(labels: list[Any], seed: int = 0) -> np.ndarray:
    """Return vectors of length one in which one direction of many tells the labels apart."""
    drawn = np.random.default_rng(seed).normal(size=(len(labels), WIDTH)).astype(np.float32)
    drawn[:, 0] = np.where(np.array(labels) == labels[0], 0.7, -0.7)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def put(cache: Cache, contract: Contract, texts: list[str], vectors: np.ndarray) -> None:
    tokens = np.arange(len(texts), dtype=np.int32) + 3
    store = cache.store(contract, "float32")
    store.put(VectorBatch(key_array(texts), vectors, tokens, tokens % 2 == 0))
    store.finish()


def make_cache(folder: Path, labels: list[Any] | None = LABELS, texts: list[str] = TEXTS) -> Cache:
    """A cache of labelled rows with vectors of one teacher, which no model is behind."""
    cache = Cache.create(folder)
    store_corpus(cache.corpora_folder, "rows", cut(texts, None, labels), ReadReport())
    teacher = cache.register_teacher("base", example_contract(WIDTH), {"spec": "nowhere"})
    put(cache, teacher.contract, texts, vectors_of(labels or LABELS))
    return cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return make_cache(tmp_path / "cache")


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in (folder / "teachers").rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_projection_is_a_teacher_whose_vectors_are_the_mapped_ones(cache):
    found = project(cache, dim=5, settings=QUICK)
    teacher = cache.teacher("base.projected")
    assert (found.teacher, found.of, found.corpus, found.rows) == ("base.projected", "base", "rows", ROWS)
    assert (found.contract, found.dimension, found.written) == (teacher.contract.id, 5, ROWS)
    assert found.labels == {"cold": 160, "warm": 80}
    vectors = cache.lookup(TEXTS, "base.projected")
    matrix = read_projection(cache, teacher)
    expected = np.array([matrix.astype(np.float64) @ one for one in cache.lookup(TEXTS, "base")])
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    # Kept in half precision.
    np.testing.assert_allclose(vectors, expected, atol=1e-3)
    assert vectors.shape == (ROWS, 5)
    store, base = cache.store(teacher.contract), cache.store(example_contract(WIDTH))
    for mine, its in zip(
        store.seen(store.locate(key_array(TEXTS))), base.seen(base.locate(key_array(TEXTS))), strict=True
    ):
        np.testing.assert_array_equal(mine, its)


def test_its_contract_says_what_it_was_made_of_and_by_which_map(cache):
    base = cache.teacher("base").contract
    project(cache, dim=5, settings=QUICK)
    contract = cache.teacher("base.projected").contract
    assert set(base.differences(contract)) == {"modules", "output", "dimension"}
    assert (contract.output, contract.normalize, contract.dimension) == ("projection", True, 5)
    (entry,) = json.loads(contract.modules)
    assert (entry["type"], entry["of"]) == ("Projection", base.id)
    matrix = read_projection(cache, cache.teacher("base.projected"))
    assert projection_contract(base, matrix) == contract
    assert projection_contract(base, matrix + 1) != contract
    other = Contract(**{**base.to_json(), "max_length": 3})
    assert projection_contract(other, matrix) != contract
    assert is_derived(contract)
    assert not is_derived(base)


def test_rows_of_one_label_lie_together_afterwards(cache):
    found = project(cache, settings=ProjectionSettings(batch_size=64, lr=0.02, epochs=30))
    assert found.dimension == WIDTH
    assert found.losses[-1] < found.losses[0] - 0.1
    assert len(found.losses) == 30
    assert found.sample == ROWS
    assert found.accuracy > found.accuracy_of + 0.05
    assert found.accuracy > 0.95
    labels = np.array([label == "warm" for label in LABELS], dtype=np.int64)
    assert found.accuracy_of == pytest.approx(neighbour_accuracy(cache.lookup(TEXTS, "base"), labels))
    projected = neighbour_accuracy(cache.lookup(TEXTS, "base.projected"), labels)
    assert found.accuracy == pytest.approx(projected, abs=0.02)


def test_a_map_that_hardly_moved_is_told_of_with_what_to_do(cache):
    still = project(cache, settings=ProjectionSettings(epochs=3))
    assert still.hardly_moved
    assert 0 < still.moved < 0.001
    assert still.steps == 3
    assert still.cosines.within == pytest.approx(still.cosines_of.within, abs=0.01)
    assert still.facts()["hardly_moved"] is True
    moved = project(cache, teacher="base", settings=ProjectionSettings(lr=0.02, epochs=10), name="moved")
    assert not moved.hardly_moved
    assert moved.moved > 0.1
    assert moved.cosines_of == still.cosines_of
    assert moved.cosines.within > moved.cosines_of.within + 0.1
    assert moved.loss_of == still.loss_of
    assert moved.loss < 0.95 * moved.loss_of
    words = ["project", "--cache", str(cache.folder), "--teacher", "base"]
    said = CliRunner().invoke(cli, [*words, "--name", "a"], env={"COLUMNS": "160"}, catch_exceptions=False)
    told = " ".join(said.output.split())
    assert "the map hardly moved" in told
    assert f"moved by {100 * still.moved:.2f} % of its norm" in told
    assert "here it was 3 steps at 2e-05: give --lr 0.001, or more --epochs" in told
    assert f"of one label {still.cosines_of.within:.3f} -> " in told
    said = CliRunner().invoke(cli, [*words, "--name", "c", "--lr", "1e-3", "--epochs", "1"])
    told = " ".join(said.output.split())
    assert "here it was 1 step at 0.001: give more --epochs" in told
    assert "--lr" not in told
    said = CliRunner().invoke(cli, [*words, "--name", "b", "--lr", "0.02", "--epochs", "10"])
    assert "the map hardly moved" not in " ".join(said.output.split())


def test_labels_that_a_teacher_parts_too_far_are_drawn_together_and_that_is_no_standstill(tmp_path):
    """A tenth of the labels is wrong, and the teacher is sure of all: the loss then wants a smaller gap."""
    sides = np.arange(ROWS) % 2
    labels = np.where(np.arange(ROWS) % 11 == 0, 1 - sides, sides).astype(str).tolist()
    vectors = np.random.default_rng(8).normal(scale=0.05, size=(ROWS, WIDTH)).astype(np.float32)
    vectors[:, 0] = 2 * sides - 1
    cache = Cache.create(tmp_path / "cache")
    store_corpus(cache.corpora_folder, "rows", cut(TEXTS, None, labels), ReadReport())
    put(cache, cache.register_teacher("base", example_contract(WIDTH), {}).contract, TEXTS, vectors)
    found = project(cache, settings=ProjectionSettings(batch_size=64, lr=0.02, epochs=20))
    before = found.cosines_of.within - found.cosines_of.between
    assert found.cosines.within - found.cosines.between < before - 0.2
    assert not found.hardly_moved


def parted(folder: Path, sides: np.ndarray, vectors: np.ndarray) -> Cache:
    """A cache of vectors by hand, their sides the labels."""
    texts = sentences(len(sides), seed=5)
    cache = Cache.create(folder)
    store_corpus(cache.corpora_folder, "rows", cut(texts, None, sides.astype(str).tolist()), ReadReport())
    teacher = cache.register_teacher("base", example_contract(vectors.shape[1]), {})
    put(cache, teacher.contract, texts, vectors.astype(np.float32))
    return cache


def test_a_map_that_moves_at_the_floor_of_the_loss_is_no_standstill(tmp_path):
    """All is right before, so the loss cannot fall by much; the map goes far all the same."""
    sides = np.arange(ROWS) % 2
    vectors = np.random.default_rng(8).normal(scale=0.03, size=(ROWS, WIDTH))
    vectors[:, 0] += 2 * sides - 1
    found = project(parted(tmp_path / "cache", sides, vectors), settings=QUICK)
    assert found.loss > 0.99 * found.loss_of
    assert found.moved > 0.05
    assert not found.hardly_moved
    assert not found.lost_neighbours


def test_a_width_too_narrow_for_the_labels_is_told_and_is_no_standstill(tmp_path, monkeypatch):
    generator = np.random.default_rng(3)
    labels = np.arange(ROWS) % 12
    vectors = 4 * np.eye(WIDTH)[labels] + generator.normal(scale=0.5, size=(ROWS, WIDTH))
    cache = parted(tmp_path / "cache", labels, vectors)
    narrow = project(cache, dim=2, settings=QUICK)
    assert (narrow.dimension_of, narrow.dimension) == (WIDTH, 2)
    assert narrow.loss > narrow.loss_of
    assert not narrow.hardly_moved
    assert narrow.lost_neighbours
    assert narrow.facts()["lost_neighbours"] is True
    full = project(cache, teacher="base", settings=QUICK, name="full")
    assert not full.lost_neighbours
    words = ["project", "--cache", str(cache.folder), "--teacher", "base", "--lr", "0.02", "--epochs", "20"]
    said = CliRunner().invoke(cli, [*words, "--dim", "2", "--name", "two"], catch_exceptions=False).stdout
    assert "note: fewer rows are next to those of their label than before: give more than --dim 2" in said
    assert "hardly moved" not in said
    assert "note" not in CliRunner().invoke(cli, [*words, "--name", "all"], catch_exceptions=False).stdout
    worse = replace(full, accuracy=full.accuracy_of - 0.03)
    monkeypatch.setattr(distill.projection, "project", lambda *given, **settings: worse)
    said = CliRunner().invoke(cli, [*words, "--name", "all"], catch_exceptions=False).stdout
    assert "than before: give a lower --lr, or fewer --epochs, and another --name" in said


def test_where_no_row_has_a_partner_the_map_stays_and_that_is_told(tmp_path):
    cache = make_cache(tmp_path / "cache", list(range(ROWS)))
    found = project(cache, settings=QUICK)
    assert (found.steps, found.moved, found.loss_of, found.loss) == (0, 0, None, None)
    assert found.hardly_moved
    words = ["project", "--cache", str(cache.folder), "--teacher", "base", "--name", "a"]
    said = " ".join(CliRunner().invoke(cli, words, catch_exceptions=False).stdout.split())
    assert "in no batch did two rows have one label. Use a corpus with several rows of each label" in said
    assert "learning rate" not in said
    assert "unknown among each other" in said


def test_the_mean_loss_is_that_of_the_rows_with_a_partner():
    generator = np.random.default_rng(6)
    vectors = generator.normal(size=(9, 5)).astype(np.float32)
    labels = np.array([0, 0, 1, 1, 1, 2, 0, 3, 1])
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors, axis=1, keepdims=True)
    logits = unit @ unit.T / 0.3
    losses = []
    for i in range(9):
        others = [j for j in range(9) if j != i]
        partners = [j for j in others if labels[j] == labels[i]]
        whole = np.log(np.exp(logits[i, others]).sum())
        losses += [-np.mean([logits[i, j] - whole for j in partners])] if partners else []
    assert len(losses) == 7
    found = mean_loss(vectors, labels, 0.3)
    assert found == pytest.approx(np.mean(losses), rel=1e-5)
    assert found == pytest.approx(mean_loss(7 * vectors, labels, 0.3), rel=1e-5)
    assert found != pytest.approx(mean_loss(vectors, labels, 0.1), rel=0.01)
    assert mean_loss(vectors, np.arange(9), 0.3) is None


def test_mean_cosines_are_those_of_all_pairs():
    generator = np.random.default_rng(4)
    vectors = (generator.normal(size=(30, 5)) * generator.uniform(0.1, 9, size=(30, 1))).astype(np.float32)
    labels = generator.integers(0, 3, size=30)
    within, between = [], []
    for i in range(30):
        for j in range(i):
            cosine = vectors[i] @ vectors[j] / np.linalg.norm(vectors[i]) / np.linalg.norm(vectors[j])
            (within if labels[i] == labels[j] else between).append(cosine)
    found = label_cosines(vectors, labels)
    assert found.within == pytest.approx(np.mean(within), abs=1e-5)
    assert found.between == pytest.approx(np.mean(between), abs=1e-5)
    assert label_cosines(vectors, np.arange(30)).within is None
    assert label_cosines(vectors, np.zeros(30, dtype=np.int64)).between is None


def test_without_training_the_map_of_full_width_keeps_every_cosine(cache):
    project(cache, settings=ProjectionSettings(lr=1e-12, epochs=1))
    matrix = read_projection(cache, cache.teacher("base.projected"))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(WIDTH), atol=1e-5)
    assert abs(matrix - np.eye(WIDTH)).max() > 0.1


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tmp_path):
    made = []
    for number, settings in enumerate((QUICK, QUICK, ProjectionSettings(**{**vars(QUICK), "seed": 1}))):
        one = make_cache(tmp_path / str(number))
        project(one, dim=5, settings=settings, threads=1)
        made.append(content(one.folder))
    assert made[0] == made[1]
    assert made[0].keys() != made[2].keys()


def test_the_same_again_is_harmless_and_other_settings_need_another_name(cache):
    first = project(cache, dim=5, settings=QUICK, threads=1)
    before = content(cache.folder)
    again = project(cache, teacher="base", dim=5, settings=QUICK, threads=1)
    assert (first.written, again.written) == (ROWS, 0)
    assert content(cache.folder) == before
    with pytest.raises(ConfigError, match=r"^--name base.projected: .* another --name"):
        project(cache, teacher="base", dim=4, settings=QUICK)
    assert content(cache.folder) == before
    project(cache, teacher="base", dim=4, settings=QUICK, name="narrow")
    assert [teacher.name for teacher in cache.teachers()] == ["base", "base.projected", "narrow"]


def test_the_callers_random_numbers_go_on_as_they_were(cache):
    import torch

    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    project(cache, settings=QUICK)
    assert torch.equal(torch.rand(3), expected)


def test_rows_without_a_partner_in_their_batch_are_counted(tmp_path):
    labels = ["rare" if number == 7 else "a" if number % 2 else "b" for number in range(ROWS)]
    found = project(make_cache(tmp_path / "cache", labels), settings=QUICK)
    assert found.alone == QUICK.epochs
    assert found.labels["rare"] == 1
    none = project(make_cache(tmp_path / "numbers", list(range(ROWS))), settings=QUICK)
    assert none.alone == QUICK.epochs * ROWS
    assert none.losses == (0.0,) * QUICK.epochs


def test_a_text_that_stands_twice_is_trained_on_once(tmp_path):
    found = project(make_cache(tmp_path / "cache", LABELS, [*TEXTS[:-1], TEXTS[0]]), settings=QUICK)
    assert (found.rows, found.written) == (ROWS - 1, ROWS - 1)


def add_rows(cache: Cache, known: bool) -> list[str]:
    more = sentences(ROWS + 30, seed=5)[ROWS - 10 :]
    store_corpus(cache.corpora_folder, "more", cut(more), ReadReport())
    if known:
        put(cache, example_contract(WIDTH), more, vectors_of(LABELS, 9)[:40])
    return more


def test_the_vectors_that_another_corpus_lacks_are_added_without_training(cache):
    project(cache, dim=5, settings=QUICK)
    before = cache.lookup(TEXTS, "base.projected")
    more = add_rows(cache, known=True)
    teacher = cache.teacher("base.projected")
    # No build makes them: who looks for what is missing is told so.
    (lacking,) = [one for one in verify(cache.folder).findings if "base.projected" in one.what]
    assert "'distill project --apply' makes them" in lacking.fix
    found = examine(cache, corpus="more", teacher="base.projected").findings
    assert any("project it again" in one.advice for one in found if one.name == "missing vectors: more")
    assert extend_projection(cache, "base.projected", corpus="more") == 30
    assert extend_projection(cache.folder, teacher, corpus="more") == 0
    np.testing.assert_array_equal(cache.lookup(TEXTS, "base.projected"), before)
    expected = apply_projection(read_projection(cache, teacher), cache.lookup(more, "base"))
    np.testing.assert_allclose(cache.lookup(more, "base.projected"), expected, atol=1e-3)


def test_what_the_base_lacks_is_refused_before_anything_is_written(cache):
    project(cache, dim=5, settings=QUICK)
    before = content(cache.folder)
    add_rows(cache, known=False)
    with pytest.raises(
        MissingVectorsError, match=r"^30 of 40 texts of corpus 'more' .* run 'embedcache build'"
    ):
        extend_projection(cache, "base.projected", corpus="more")
    with pytest.raises(InputError, match="'base' is no projection"):
        extend_projection(cache, "base", corpus="rows")
    assert content(cache.folder) == before


def refused(make: Callable[[], Cache], told: str, error: type[Exception], **given: Any) -> None:
    cache = make()
    before = content(cache.folder)
    with pytest.raises(error, match=told):
        project(cache, **given)
    assert content(cache.folder) == before


@pytest.mark.parametrize(
    ("labels", "told"),
    [
        (None, "has no labels, .* --label-column"),
        (["a"] * ROWS, "all 240 rows of corpus 'rows' have the label a"),
        ([number / 7 for number in range(ROWS)], "fractions for labels"),
    ],
)
def test_a_corpus_without_labels_to_tell_apart_is_refused(tmp_path, labels, told):
    refused(lambda: make_cache(tmp_path / "cache", labels), told, DataError)


def test_rows_without_vectors_are_refused(tmp_path):
    def half() -> Cache:
        cache = Cache.create(tmp_path / "half")
        store_corpus(cache.corpora_folder, "rows", cut(TEXTS, None, LABELS), ReadReport())
        teacher = cache.register_teacher("base", example_contract(WIDTH), {})
        put(cache, teacher.contract, TEXTS[:100], vectors_of(LABELS)[:100])
        return cache

    refused(half, "140 of 240 texts of corpus 'rows' have no vector of teacher 'base'", DataError)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"dim": WIDTH + 1}, "--dim 13: teacher 'base' has 12 dimensions"),
        ({"dim": 0}, "--dim 0"),
        ({"settings": ProjectionSettings(tau=0)}, "--tau 0: expected a number above 0"),
        (
            {"settings": ProjectionSettings(lr=float("inf"))},
            "--lr inf: expected a number above 0, and 1,000,000,000 at",
        ),
        ({"settings": ProjectionSettings(epochs=10**30)}, "--epochs 1000.* at most"),
        ({"settings": ProjectionSettings(seed=-1)}, "--seed -1: expected a number above -1"),
        ({"settings": ProjectionSettings(batch_size=1)}, "--batch-size 1: expected a number above 1"),
        ({"settings": ProjectionSettings(lr=float("nan"))}, "--lr nan"),
        ({"settings": ProjectionSettings(epochs=0)}, "--epochs 0"),
    ],
)
def test_settings_out_of_range_are_refused(cache, given, told):
    refused(lambda: cache, told, ConfigError, **given)


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_map_that_grows_beyond_all_bounds_is_refused_before_anything_is_written(cache):
    before = [teacher.name for teacher in cache.teachers()]
    labels = np.array([0, 1] * 32)
    vectors, wild = vectors_of(labels.tolist()), ProjectionSettings(lr=1e30, epochs=1)
    with pytest.raises(TrainingError, match=r"beyond all bounds at --lr 1e\+30: give a lower one"):
        train_map(lambda rows: vectors[rows], labels, (WIDTH, WIDTH), wild, lambda done, total: None)
    with pytest.raises(TrainingError, match="lower"):
        project(cache, settings=ProjectionSettings(batch_size=64, lr=1e9, epochs=40), name="wild")
    assert [teacher.name for teacher in cache.teachers()] == before


def test_only_embeddings_are_projected(cache):
    project(cache, dim=5, settings=QUICK)
    refused(lambda: cache, "whose output is 'projection'", InputError, teacher="base.projected")
    contract = cache.teacher("base").contract
    with pytest.raises(InputError, match="for vectors of 12 dimensions"):
        projection_contract(contract, np.ones((3, 4), dtype=np.float32))


def test_vectors_that_are_no_numbers_stop_the_training():
    vectors = np.full((8, 3), np.nan, dtype=np.float32)
    with pytest.raises(TrainingError, match="embedcache doctor"):
        train_map(
            lambda rows: vectors[rows],
            np.zeros(8, dtype=np.int64),
            (2, 3),
            ProjectionSettings(),
            lambda done, total: None,
        )


def test_a_damaged_map_is_named(cache):
    project(cache, dim=5, settings=QUICK)
    teacher = cache.teacher("base.projected")
    path = cache.teacher_folder(teacher.contract) / PROJECTION
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptCacheError, match=r"projection\.safetensors is damaged .* epochs 4"):
        read_projection(cache, teacher)
    path.unlink()
    with pytest.raises(CorruptCacheError, match="run 'distill project' again"):
        read_projection(cache, teacher)
    project(cache, teacher="base", dim=5, settings=QUICK)
    assert read_projection(cache, teacher).shape == (5, WIDTH)


def test_a_base_that_is_not_there_is_named(cache):
    contract = projection_contract(
        example_contract(WIDTH, max_length=9), np.ones((2, WIDTH), dtype=np.float32)
    )
    with pytest.raises(InputError, match="does not hold: build that one first"):
        base_of(cache, CachedTeacher("lost", contract, {}))


def test_a_map_is_kept_once_and_before_the_teacher_is_listed(cache, monkeypatch):
    matrix = np.eye(WIDTH, dtype=np.float32)[:4]
    listed: list[str] = []

    def refuse(*arguments: object) -> None:
        listed.extend(path.name for path in (cache.folder / "teachers").rglob(PROJECTION))
        raise OSError("full")

    monkeypatch.setattr(Cache, "register_teacher", refuse)
    with pytest.raises(OSError, match="full"):
        write_derived(cache, cache.teacher("base"), "four", matrix, "by hand")
    assert listed == [PROJECTION]
    assert [teacher.name for teacher in cache.teachers()] == ["base"]


@pytest.mark.parametrize("neighbours", [1, 3, 100])
def test_neighbours_vote_without_the_row_itself(neighbours):
    generator = np.random.default_rng(2)
    vectors = generator.normal(size=(40, 4)).astype(np.float32) * generator.uniform(0.1, 9, size=(40, 1))
    labels = generator.integers(0, 3, size=40)
    right = 0
    for i in range(40):
        cosines = [
            float(vectors[i] @ vectors[j] / np.linalg.norm(vectors[i]) / np.linalg.norm(vectors[j]))
            for j in range(40)
        ]
        order = [j for j in np.argsort(-np.array(cosines), kind="stable") if j != i][:neighbours]
        right += int(np.bincount(labels[order], minlength=3).argmax() == labels[i])
    assert neighbour_accuracy(vectors.astype(np.float32), labels, neighbours) == right / 40
    # Were rows their own neighbours, one neighbour would always be right.
    assert neighbour_accuracy(vectors.astype(np.float32), labels, 1) < 1


def test_the_command_says_what_came_out_and_can_be_repeated(cache):
    words = ["project", "--cache", str(cache.folder), "--teacher", "base", "--dim", "5", "--epochs", "2"]
    words += ["--lr", "0.01", "--batch-size", "64", "--tau", "0.1", "--seed", "4", "--threads", "1"]
    shown = CliRunner().invoke(cli, words, env={"COLUMNS": "160"}, catch_exceptions=False)
    assert shown.exit_code == 0
    for word in ("base.projected, 5 dimensions", "cold: 160, warm: 80", "% right before", "240 added"):
        assert word in shown.stdout
    assert "--teacher base.projected --loss reaugkd" in shown.stdout
    facts = json.loads(CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False).stdout)
    assert (facts["teacher"], facts["written"], len(facts["losses"])) == ("base.projected", 0, 2)
    note = cache.teacher("base.projected").origin["projection"]
    assert note == "of base, corpus rows, tau 0.1, batch_size 64, lr 0.01, epochs 2, seed 4"


def test_the_command_adds_vectors_to_a_projection(cache):
    project(cache, dim=5, settings=QUICK)
    add_rows(cache, known=True)
    words = ["project", "--cache", str(cache.folder), "--teacher", "base.projected", "--corpus", "more"]
    assert CliRunner().invoke(cli, [*words, "--apply"], catch_exceptions=False).stdout == "30 vectors added\n"
    again = CliRunner().invoke(cli, [*words, "--apply", "--json"], catch_exceptions=False)
    assert json.loads(again.stdout) == {"written": 0}
    refused = CliRunner().invoke(cli, [*words, "--apply", "--epochs", "2", "--dim", "3"])
    assert isinstance(refused.exception, ConfigError)
    assert "leave --dim, --epochs out" in str(refused.exception)


def test_no_model_library_is_loaded(cache):
    code = (
        "import sys, distill; "
        f"distill.project({str(cache.folder)!r}, dim=3); "
        "print(sorted(sys.modules.keys() & {'transformers', 'sentence_transformers', 'accelerate'}))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"
