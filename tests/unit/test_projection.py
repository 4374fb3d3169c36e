"""Projections: a teacher's cached vectors, mapped with the labels of a corpus, as another teacher."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from corpus_helpers import cut

from distill.cli.main import cli
from distill.errors import ConfigError, DataError, TrainingError
from distill.reaugkd.projection import ProjectionSettings, neighbour_accuracy, project, train_map
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
    extend,
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
    """Unit vectors of which one component tells the labels apart."""
    drawn = np.random.default_rng(seed).normal(size=(len(labels), WIDTH)).astype(np.float32)
    drawn[:, 0] = np.where(np.array(labels) == labels[0], 0.7, -0.7)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def put(cache: Cache, contract: Contract, texts: list[str], vectors: np.ndarray) -> None:
    tokens = np.arange(len(texts), dtype=np.int32) + 3
    store = cache.store(contract, "float32")
    store.put(VectorBatch(key_array(texts), vectors, tokens, tokens % 2 == 0))
    store.finish()


def make_cache(
    folder: Path, labels: list[Any] | None = LABELS, texts: list[str] = TEXTS, vectors=None
) -> Cache:
    """A cache of labelled rows with vectors of a teacher without a model."""
    cache = Cache.create(folder)
    store_corpus(cache.corpora_folder, "rows", cut(texts, None, labels), ReadReport())
    teacher = cache.register_teacher("base", example_contract(WIDTH), {"spec": "nowhere"})
    put(cache, teacher.contract, texts, vectors_of(labels or LABELS) if vectors is None else vectors)
    return cache


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return make_cache(tmp_path / "cache")


def content(folder: Path) -> dict[str, bytes]:
    files = (path for path in (folder / "teachers").rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def run(cache: Cache, *words: object):
    asked = ["kb", "project", "--cache", cache.folder, *words]
    return CliRunner().invoke(cli, [str(word) for word in asked])


def test_a_projection_is_a_teacher_whose_vectors_are_the_mapped_ones(cache):
    found = project(cache, dim=5, settings=QUICK)
    teacher, base = cache.teacher("base.projected"), cache.teacher("base")
    assert (found.teacher, found.base, found.corpus) == ("base.projected", "base", "rows")
    assert (found.contract, found.dimension, found.written) == (teacher.contract.id, 5, ROWS)
    assert found.labels == {"cold": 160, "warm": 80}
    matrix = read_projection(cache, teacher)
    expected = cache.lookup(TEXTS, "base").astype(np.float64) @ matrix.T.astype(np.float64)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    np.testing.assert_allclose(cache.lookup(TEXTS, "base.projected"), expected, atol=1e-3)
    for mine, its in zip(
        *(
            store.seen(store.locate(key_array(TEXTS)))
            for store in map(cache.store, (teacher.contract, base.contract))
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, its)
    assert set(base.contract.differences(teacher.contract)) == {"modules", "output", "dimension"}
    (entry,) = json.loads(teacher.contract.modules)
    assert (entry["type"], entry["of"]) == ("Projection", base.contract.id)
    assert projection_contract(base.contract, matrix) == teacher.contract
    assert projection_contract(base.contract, matrix + 1) != teacher.contract


def test_rows_of_one_label_lie_together_afterwards(cache):
    found = project(cache, settings=ProjectionSettings(batch_size=64, lr=0.02, epochs=30))
    assert len(found.training.losses) == 30
    assert found.training.losses[-1] < found.training.losses[0] - 0.1
    assert found.accuracy > max(0.95, found.base_accuracy + 0.05)
    labels = np.array([label == "warm" for label in LABELS], dtype=np.int64)
    assert found.base_accuracy == pytest.approx(neighbour_accuracy(cache.lookup(TEXTS, "base"), labels))
    assert found.notes == ()


def test_a_map_that_hardly_moved_or_is_too_narrow_is_noted(cache, tmp_path):
    still = project(cache, settings=ProjectionSettings())
    assert (still.training.steps, still.training.moved < 0.001) == (3, True)
    assert "--epochs" in still.notes[0]
    labels = np.arange(ROWS) % 12
    noise = np.random.default_rng(3).normal(scale=0.5, size=(ROWS, WIDTH))
    vectors = (4 * np.eye(WIDTH)[labels] + noise).astype(np.float32)
    cache = make_cache(tmp_path / "many", labels.astype(str).tolist(), vectors=vectors)
    assert "--dim" in project(cache, dim=2, settings=QUICK).notes[0]
    assert project(cache, teacher="base", settings=QUICK, name="full").notes == ()


@pytest.mark.parametrize(
    "words",
    [
        "project --tau 0",
        "project --lr 0",
        "project --seed 10000000000",
        "build m --ef-construction 100000000",
    ],
)
def test_a_setting_out_of_its_range_is_one_line(cache, words):
    said = CliRunner().invoke(cli, ["kb", *words.split(), "--cache", str(cache.folder)])
    assert (said.exit_code, "is not in the range" in said.output) == (2, True)


def test_rows_without_a_partner_in_their_batch_are_counted(tmp_path):
    labels = ["rare" if number == 7 else "a" if number % 2 else "b" for number in range(ROWS)]
    found = project(make_cache(tmp_path / "cache", labels), settings=QUICK)
    assert (found.training.alone, found.labels["rare"]) == (QUICK.epochs, 1)
    none = project(make_cache(tmp_path / "numbers", list(range(ROWS))), settings=QUICK)
    assert (none.training.alone, none.training.steps, none.training.moved) == (QUICK.epochs * ROWS, 0, 0)
    assert "not trained" in none.notes[0]


def test_without_training_the_map_of_full_width_keeps_every_cosine(cache):
    project(cache, settings=ProjectionSettings(lr=1e-12, epochs=1))
    matrix = read_projection(cache, cache.teacher("base.projected"))
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(WIDTH), atol=1e-5)
    assert abs(matrix - np.eye(WIDTH)).max() > 0.1


def test_the_same_again_is_harmless_and_other_settings_need_another_name(cache, tmp_path):
    import torch

    drawn = torch.random.get_rng_state()
    assert project(cache, dim=5, settings=QUICK, threads=1).written == ROWS
    assert torch.equal(torch.random.get_rng_state(), drawn)
    before = content(cache.folder)
    assert project(cache, teacher="base", dim=5, settings=QUICK, threads=1).written == 0
    other = make_cache(tmp_path / "other")
    project(other, dim=5, settings=QUICK, threads=1)
    assert content(cache.folder) == content(other.folder) == before
    for changed in ({"dim": 4}, {"dim": 5, "settings": QUICK.model_copy(update={"seed": 1})}):
        with pytest.raises(ConfigError, match="another name"):
            project(cache, teacher="base", **{"settings": QUICK, **changed})
    assert content(cache.folder) == before
    project(cache, teacher="base", dim=4, settings=QUICK, name="narrow")
    assert [teacher.name for teacher in cache.teachers()] == ["base", "base.projected", "narrow"]


def test_a_text_that_occurs_twice_is_trained_on_once(tmp_path):
    found = project(make_cache(tmp_path / "cache", LABELS, [*TEXTS[:-1], TEXTS[0]]), settings=QUICK)
    assert (sum(found.labels.values()), found.written) == (ROWS - 1, ROWS - 1)


def add_corpus(cache: Cache, known: bool) -> list[str]:
    more = sentences(ROWS + 30, seed=5)[ROWS - 10 :]
    store_corpus(cache.corpora_folder, "more", cut(more), ReadReport())
    if known:
        put(cache, example_contract(WIDTH), more, vectors_of(LABELS, 9)[:40])
    return more


def test_vectors_that_another_corpus_lacks_are_added_without_training(cache):
    project(cache, dim=5, settings=QUICK)
    before = cache.lookup(TEXTS, "base.projected")
    more = add_corpus(cache, known=True)
    (lacking,) = [one for one in verify(cache.folder).findings if "base.projected" in one.what]
    assert "kb project --apply" in lacking.fix
    found = examine(cache, corpus="more", teacher="base.projected").findings
    assert any("project it again" in one.advice for one in found if one.name == "missing vectors: more")
    words = ("--teacher", "base.projected", "--corpus", "more", "--apply", "--json")
    assert [json.loads(run(cache, *words).stdout)["written"] for _ in range(2)] == [30, 0]
    np.testing.assert_array_equal(cache.lookup(TEXTS, "base.projected"), before)
    matrix = read_projection(cache, cache.teacher("base.projected"))
    expected = apply_projection(matrix, cache.lookup(more, "base"))
    np.testing.assert_allclose(cache.lookup(more, "base.projected"), expected, atol=1e-3)
    assert run(cache, *words, "--epochs", 2).exit_code == 2


def test_missing_base_vectors_are_refused_before_anything_is_written(cache):
    project(cache, dim=5, settings=QUICK)
    before = content(cache.folder)
    add_corpus(cache, known=False)
    projected, more = cache.teacher("base.projected"), cache.corpus("more")
    with pytest.raises(MissingVectorsError, match="30 of 40 texts"):
        extend(cache, projected, more)
    with pytest.raises(InputError, match="not a projection"):
        extend(cache, cache.teacher("base"), more)
    with pytest.raises(InputError, match="output is 'projection'"):
        projection_contract(projected.contract, np.eye(5, dtype=np.float32))
    lost = projection_contract(example_contract(WIDTH, max_length=9), np.ones((2, WIDTH), np.float32))
    with pytest.raises(InputError, match="build that one first"):
        base_of(cache, CachedTeacher("lost", lost, {}))
    assert content(cache.folder) == before


@pytest.mark.parametrize(
    "labels", [None, ["a"] * ROWS, [number / 7 for number in range(ROWS)]], ids=["none", "one", "fractions"]
)
def test_a_corpus_without_class_labels_is_refused(tmp_path, labels):
    with pytest.raises(DataError, match="label_column"):
        project(make_cache(tmp_path / "cache", labels))


@pytest.mark.parametrize(
    ("key", "value"), [("tau", 0), ("lr", float("nan")), ("epochs", 0), ("seed", -1), ("batch_size", 1)]
)
def test_settings_out_of_range_are_refused(key, value):
    with pytest.raises(ValueError, match=key):
        ProjectionSettings(**{key: value})


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_map_or_a_loss_that_is_not_finite_is_an_error_before_anything_is_written(cache):
    bad = np.full((64, WIDTH), np.nan, dtype=np.float32)
    with pytest.raises(TrainingError, match="lower"):
        train_map(lambda rows: bad[rows], np.arange(64) % 2, (WIDTH, WIDTH), QUICK)
    with pytest.raises(TrainingError, match="lower"):
        project(cache, settings=ProjectionSettings(batch_size=64, lr=1e9, epochs=40), name="wild")
    with pytest.raises(ConfigError, match="dim=13"):
        project(cache, dim=WIDTH + 1)
    assert [teacher.name for teacher in cache.teachers()] == ["base"]


def test_a_damaged_map_is_named_and_made_again(cache):
    project(cache, dim=5, settings=QUICK, threads=1)
    teacher = cache.teacher("base.projected")
    path = cache.teacher_folder(teacher.contract) / PROJECTION
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptCacheError, match=r"projection\.safetensors is damaged .* epochs 4"):
        read_projection(cache, teacher)
    project(cache, teacher="base", dim=5, settings=QUICK, threads=1)
    assert read_projection(cache, teacher).shape == (5, WIDTH)


def test_a_map_is_written_before_its_teacher_is_listed(cache, monkeypatch):
    def refuse(*arguments: object) -> None:
        assert len(list((cache.folder / "teachers").rglob(PROJECTION))) == 1
        raise OSError("full")

    monkeypatch.setattr(Cache, "register_teacher", refuse)
    with pytest.raises(OSError, match="full"):
        write_derived(cache, cache.teacher("base"), "four", np.eye(WIDTH, dtype=np.float32)[:4], "by hand")
    assert [teacher.name for teacher in cache.teachers()] == ["base"]


@pytest.mark.parametrize("neighbours", [1, 3, 100])
def test_neighbours_vote_without_the_row_itself(neighbours):
    generator = np.random.default_rng(2)
    vectors = generator.normal(size=(40, 4)).astype(np.float32) * generator.uniform(0.1, 9, size=(40, 1))
    labels, right = generator.integers(0, 3, size=40), 0
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for i in range(40):
        order = [j for j in np.argsort(-(unit @ unit[i]), kind="stable") if j != i][:neighbours]
        right += int(np.bincount(labels[order], minlength=3).argmax() == labels[i])
    assert neighbour_accuracy(vectors.astype(np.float32), labels, neighbours) == right / 40


def test_the_command_prints_and_records_its_result(cache):
    words = ("--teacher", "base", "--dim", 5, "--epochs", 2, "--lr", 0.01, "--batch-size", 64, "--tau", 0.1)
    words += ("--seed", 4, "--threads", 1)
    shown = run(cache, *words).stdout
    assert "base.projected, 5 dimensions, 240 vectors added" in shown
    facts = json.loads(run(cache, *words, "--json").stdout)
    assert (facts["teacher"], facts["written"], len(facts["training"]["losses"])) == ("base.projected", 0, 2)
    note = cache.teacher("base.projected").origin["projection"]
    assert note == "of base, corpus rows, tau 0.1, batch_size 64, lr 0.01, epochs 2, seed 4"
