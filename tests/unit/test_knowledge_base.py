"""Knowledge bases: their graph, rows and files, and the students that may search them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from classification_helpers import TEXTS as ANIMALS
from classification_helpers import add_projection, labelled_cache, labelled_file
from knowledge_base_helpers import (
    HELD,
    LABELS,
    TEXTS,
    WIDTH,
    clusters,
    contracts,
    head,
    make_cache,
    make_run,
    sentiment,
    teacher_logits,
    teacher_vectors,
)
from scipy.special import softmax

from distill import RetrievalAugmentedClassifier
from distill.errors import ConfigError, DataError
from distill.layout import BEST, HELD_OUT, KNOWLEDGE_BASE, RECORD
from distill.reaugkd.index import EFFORTS, USUAL_EFFORT, IndexSettings, NeighbourIndex
from distill.reaugkd.knowledge_base import CHOSEN, HEADER, INDEX, ROWS, KnowledgeBase
from distill.reaugkd.knowledge_base import TEXTS as TEXTS_FILE
from distill.reaugkd.student import add_rows, build_base, open_student_folder
from distill.reaugkd.tune import held_out_rows, tune
from embedcache.errors import CorruptCacheError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.keys import key_array
from embedcache.testing import sentences, tiny_encoder

GOLDEN = Path(__file__).parents[1] / "gate" / "golden"
VECTORS, QUERIES = clusters(700, 24), clusters(50, 24, seed=1)
MORE = sentences(25, seed=77, longest=9)
EXACT = IndexSettings(codec="float32", ef_search=64)
KEPT = [text for text in TEXTS if text not in HELD]


# --- the graph ---


@pytest.mark.parametrize(("codec", "close"), [("float32", 1e-5), ("float16", 1e-3), ("int8", 0.02)])
def test_an_index_finds_the_nearest_and_is_a_function_of_its_rows(codec, close):
    settings = IndexSettings(codec=codec)
    index = NeighbourIndex.build(VECTORS, settings)
    rows, cosines = index.search(QUERIES, 10)
    true = np.sort(QUERIES @ VECTORS.T, axis=1)[:, :-11:-1]
    assert np.abs(cosines - true).max() < close
    assert np.array_equal(rows, np.argsort(-(QUERIES @ index.vectors().T), axis=1)[:, :10])
    assert np.array_equal(rows, index.exact(QUERIES, 10)[0])
    assert index.recall(QUERIES, 10) == 1
    assert index.to_bytes() == NeighbourIndex.build(VECTORS, settings).to_bytes()
    first = NeighbourIndex.build(VECTORS[:500], settings).to_bytes()
    assert first != NeighbourIndex.build(VECTORS[499::-1].copy(), settings).to_bytes()
    loaded = NeighbourIndex.from_bytes(first, settings)
    loaded.add(VECTORS[500:])
    assert loaded.search(VECTORS[650:], 1)[0][:, 0].tolist() == list(range(650, 700))
    assert NeighbourIndex.build(VECTORS[:4], settings).search(QUERIES, 10)[0].shape == (50, 4)


def test_bytes_of_something_else_and_links_that_lead_outside_are_refused():
    import faiss

    index = NeighbourIndex.build(VECTORS[:40], EXACT)
    links = faiss.vector_to_array(index._index.hnsw.neighbors)
    links[links >= 0] = 10**6
    faiss.copy_array_to_vector(links, index._index.hnsw.neighbors)
    flat = faiss.serialize_index(faiss.IndexFlatIP(24)).tobytes()
    for data in (b"not an index at all", flat, index.to_bytes()):
        with pytest.raises(ValueError, match="index"):
            NeighbourIndex.from_bytes(data, EXACT)


def test_a_search_is_as_long_as_it_takes_to_find_nearly_all():
    easy = NeighbourIndex.build(VECTORS, IndexSettings())
    assert easy.settle(QUERIES) is None  # too few to measure on
    assert easy.settings.ef_search == USUAL_EFFORT
    assert easy.settle(clusters(200, 24, seed=5)) >= 0.99
    assert easy.settings.ef_search == EFFORTS[0]
    assert easy.settle(QUERIES) is None
    assert easy.settings.ef_search == EFFORTS[0]
    noise = np.random.default_rng(3).normal(size=(2200, 96)).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    sparse = NeighbourIndex.build(noise[:2000], IndexSettings(m=4, ef_construction=10, codec="float32"))
    recall, settings = sparse.settle(noise[2000:]), sparse.settings
    assert settings.ef_search > EFFORTS[0]
    assert sparse.recall(noise[2000:], 10) == recall
    less = EFFORTS[EFFORTS.index(settings.ef_search) - 1]
    sparse.search_with(settings.model_copy(update={"ef_search": less}))
    assert sparse.recall(noise[2000:], 10) < min(0.99, recall)


# --- build and add ---


@pytest.fixture
def cache(tmp_path):
    return make_cache(tmp_path / "cache")


@pytest.fixture
def run(tmp_path, cache):
    return make_run(tmp_path / "run", cache, contracts()[1])


def contents(model: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((model / BEST / KNOWLEDGE_BASE).iterdir())}


def test_a_base_holds_vectors_and_soft_labels_of_all_but_the_held_out_rows(tmp_path, run):
    cache = make_cache(tmp_path / "twice", [*TEXTS, *TEXTS[20:25]])
    made = build_base(run, cache.folder, settings=EXACT, texts=True)
    assert (made.added, made.held_out, made.repeated, made.known) == (len(KEPT), len(HELD), 5, 0)
    base = open_student_folder(run).base()
    assert np.array_equal(base.keys, key_array(KEPT))
    assert np.allclose(base.index.vectors(), teacher_vectors(KEPT), atol=1e-6)
    assert np.allclose(base.soft_labels, softmax(teacher_logits(KEPT), axis=1), atol=1e-6)
    assert (base.texts, base.header.tau, base.header.origin.labels) == (tuple(KEPT), 0.2, LABELS)
    assert not base.holds(key_array(HELD)).any()


def test_the_same_rows_give_the_same_bytes_and_a_base_is_not_replaced_unasked(run, cache):
    build_base(run, cache.folder, texts=True)
    first = contents(run)
    assert set(first) == {HEADER, INDEX, ROWS, TEXTS_FILE}
    with pytest.raises(ConfigError, match="overwrite"):
        build_base(run, cache.folder)
    build_base(run, cache.folder, texts=True, overwrite=True)
    assert contents(run) == first
    build_base(run, cache.folder, overwrite=True)
    assert set(contents(run)) == {HEADER, INDEX, ROWS}
    assert len(list((run / BEST).iterdir())) == 3


def test_another_corpus_is_added_without_training(tmp_path, run, cache):
    build_base(run, cache.folder, settings=EXACT, texts=True)
    before = KnowledgeBase.read(run / BEST)
    choice = KnowledgeBase.read(GOLDEN).header.chosen
    header = before.header.model_copy(update={"chosen": choice})
    replace(before, header=header, chosen_keys=key_array(HELD[:3])).write(run / BEST)
    more = make_cache(tmp_path / "more", [*MORE, *TEXTS[20:23], *HELD[:2]], name="more")
    added = add_rows(run, more.folder)
    assert (added.added, added.known, added.held_out) == (len(MORE), 3, 2)
    base = open_student_folder(run).base()
    assert base.texts == (*before.texts, *MORE)
    assert [corpus.name for corpus in base.header.corpora] == ["films", "more"]
    rows, _ = base.index.search(teacher_vectors(MORE), 1)
    assert rows[:, 0].tolist() == list(range(len(before), len(base)))
    assert np.array_equal(base.soft_labels[rows[:, 0]].argmax(axis=1), sentiment(MORE))
    assert base.header.chosen == choice
    assert np.array_equal(base.chosen_keys, key_array(HELD[:3]))
    with pytest.raises(DataError, match="no new row"):
        add_rows(run, more.folder)


def test_a_bigger_base_is_measured_again_unless_its_search_was_asked_for(tmp_path, run, cache, monkeypatch):
    monkeypatch.setattr("distill.reaugkd.index.FEWEST_QUERIES", len(HELD))
    more = make_cache(tmp_path / "more", [*MORE, *HELD], name="more")
    assert build_base(run, cache.folder).recall >= 0.99
    monkeypatch.setattr("distill.reaugkd.index.EFFORTS", (48, 64))
    added = add_rows(run, more.folder)
    assert (added.recall >= 0.99, added.header.index.ef_search) == (True, 48)
    assert build_base(run, cache.folder, settings=EXACT, overwrite=True).recall is None
    assert add_rows(run, more.folder).header.index == EXACT


@pytest.mark.parametrize("lacking", [1, 2], ids=["vectors", "logits"])
def test_missing_vectors_are_named(run, cache, lacking):
    shutil.rmtree(cache.teacher_folder(contracts()[lacking]) / "shards")
    with pytest.raises(DataError, match=r"46 of 46 texts .* no vector of teacher"):
        build_base(run, cache.folder)
    assert KnowledgeBase.read(run / BEST) is None


# --- files ---


def test_the_form_on_disk_is_that_of_the_golden_base(tmp_path):
    base = KnowledgeBase.read(GOLDEN)
    assert (len(base), base.header.chosen.k, len(base.texts), len(base.chosen_keys)) == (71, 5, 71, 3)
    assert base.header.chosen.within_chance
    base.write(tmp_path)
    for path in (GOLDEN / KNOWLEDGE_BASE).iterdir():
        assert (tmp_path / KNOWLEDGE_BASE / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("name", [HEADER, INDEX, ROWS, TEXTS_FILE, CHOSEN])
@pytest.mark.parametrize("how", ["flipped", "missing", "linked"])
def test_damage_of_any_file_is_found(tmp_path, name, how):
    path = shutil.copytree(GOLDEN / KNOWLEDGE_BASE, tmp_path / KNOWLEDGE_BASE) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if how == "linked":
        path.symlink_to(GOLDEN / KNOWLEDGE_BASE / name)
    elif how == "flipped":
        path.write_bytes(data)
    with pytest.raises(CorruptCacheError, match="is damaged"):
        KnowledgeBase.read(tmp_path)


@pytest.mark.parametrize(
    "changes", [{"rows": 72}, {"dimension": 9}, {"version": 2}, {"surprise": 1}, {"files": {}}, {"tau": -1}]
)
def test_a_header_that_does_not_fit_the_files_is_refused(tmp_path, changes):
    folder = shutil.copytree(GOLDEN / KNOWLEDGE_BASE, tmp_path / KNOWLEDGE_BASE)
    write_sealed_json(folder / HEADER, {**read_sealed_json(folder / HEADER), **changes})
    with pytest.raises(CorruptCacheError):
        KnowledgeBase.read(tmp_path)


# --- students ---


@pytest.mark.parametrize(
    ("of", "field"),
    [
        ({"weights": "b"}, "weights"),
        ({"projection": "q"}, "projection"),
        ({"labels": ("good", "bad")}, "labels"),
    ],
)
def test_a_base_of_other_vectors_or_labels_is_refused_when_built_and_when_opened(
    tmp_path, run, cache, of, field
):
    others = make_cache(tmp_path / "others", **of)
    with pytest.raises(DataError, match=f"teacher 'tiny.projected' .*{field} "):
        build_base(run, others.folder, teacher="tiny.projected")
    build_base(run, cache.folder)
    more = make_cache(tmp_path / "more", MORE, name="more", **of)
    with pytest.raises(DataError, match="classifier" if field == "labels" else "no teacher 'tiny.projected'"):
        add_rows(run, more.folder)
    stranger = make_run(tmp_path / "stranger", cache, contracts(**of)[1])
    head(of.get("labels", LABELS)).write(stranger / BEST)
    shutil.copytree(run / BEST / KNOWLEDGE_BASE, stranger / BEST / KNOWLEDGE_BASE)
    with pytest.raises(DataError, match=f"base in .*stranger.*{field} "):
        open_student_folder(stranger).base()


@pytest.mark.parametrize(("trained", "teacher"), [(1, "tiny"), (0, "tiny.projected")])
def test_the_teacher_with_and_without_its_projection_are_distinguished(tmp_path, cache, trained, teacher):
    run = make_run(tmp_path / "run", cache, contracts()[trained])
    with pytest.raises(DataError, match=r"projection .*none"):
        build_base(run, cache.folder, teacher=teacher)


@pytest.mark.parametrize("loss", ["kd", "rkd-kd", "pkd", "tinybert"])
def test_a_student_whose_loss_brings_it_near_no_teacher_has_no_neighbours(tmp_path, cache, loss):
    with pytest.raises(DataError, match="no neighbours"):
        build_base(make_run(tmp_path / loss, cache, contracts()[1], loss=loss), cache.folder)


def test_another_width_is_refused_and_a_copied_folder_needs_a_teacher(tmp_path, run, cache):
    with pytest.raises(DataError, match="no knowledge base"):
        open_student_folder(run).base()
    build_base(run, cache.folder)
    copy = Path(shutil.copytree(run / BEST, tmp_path / "copy"))
    assert len(open_student_folder(copy).base()) == len(KEPT)
    with pytest.raises(ConfigError, match="teacher"):
        build_base(copy, cache.folder, overwrite=True)
    head(width=9).write(copy)
    with pytest.raises(DataError, match="dimension 8 -> 9"):
        open_student_folder(copy).base()


def test_folders_without_a_classifier_or_a_sound_record_are_refused(tmp_path, run):
    with pytest.raises(ConfigError):
        open_student_folder(tmp_path / "missing")
    (run / RECORD).write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="record"):
        open_student_folder(run)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no classifier"):
        open_student_folder(tmp_path / "empty")


def test_held_out_rows_come_with_the_labels_of_the_corpus(tmp_path, run, cache):
    rows = held_out_rows(open_student_folder(run))
    assert (rows.texts, rows.labels) == (HELD, [LABELS[number] for number in sentiment(HELD)])
    changed = make_cache(tmp_path / "changed", TEXTS[1:])
    rows = held_out_rows(open_student_folder(run), changed.folder)
    assert rows.texts == HELD[1:]
    assert rows.described.startswith("1 of 14")
    shutil.rmtree(cache.folder)
    with pytest.raises(DataError, match="cache"):
        held_out_rows(open_student_folder(run))
    (run / HELD_OUT).unlink()
    with pytest.raises(DataError, match="data=FILE"):
        held_out_rows(open_student_folder(run), changed.folder)


# --- classifiers trained on labels alone ---


OWN = {"cache": None, "contract": None, "loss": "cross-entropy"}


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """Classifier without a teacher, and a cache of its vectors, logits and a projection; read only."""
    folder = tmp_path_factory.mktemp("taught")
    file = labelled_file(folder)
    run = make_run(folder / "run", held=ANIMALS[:14], **OWN)
    tiny_encoder(run / BEST, dimension=WIDTH, layers=1, normalize=False)
    for name, bias in (("own", 0), ("other", 1)):
        one = head(("animal", "none"))
        replace(one, bias=one.bias + bias).write(run / BEST)
        cache = labelled_cache(file, run / BEST, folder / "cache", teacher_name=name)
    head(("animal", "none")).write(run / BEST)
    add_projection(cache, "own", WIDTH)
    return run, cache, file


def test_a_taught_classifier_searches_its_own_vectors(taught, tmp_path):
    run, cache = Path(shutil.copytree(taught[0], tmp_path / "run")), taught[1]
    with pytest.raises(ConfigError, match="without a teacher"):
        build_base(run, cache.folder)
    for model in (run, shutil.copytree(run / BEST, tmp_path / "copy")):
        with pytest.raises(DataError, match=r"\(projection .* -> none\)"):
            build_base(model, cache.folder, teacher="own.projected")
    with pytest.raises(DataError, match=r"'other' .*\(classifier "):
        build_base(run, cache.folder, teacher="other")
    build_base(run, cache.folder, teacher="own")
    base = KnowledgeBase.read(run / BEST)
    classifier = RetrievalAugmentedClassifier.from_folder(run, device="cpu", threads=1, k=1)
    kept = [text for text in ANIMALS if base.holds(key_array([text]))[0]][:20]
    assert all(one[0].cosine > 0.999 for one in classifier.neighbours(kept))
    assert tune(run, cache=cache.folder, device="cpu", threads=1).chosen.rows > 10


def test_its_vectors_of_other_settings_are_refused_and_scaled_ones_are_not(taught, tmp_path):
    run, file = Path(shutil.copytree(taught[0], tmp_path / "run")), taught[2]
    scaled = labelled_cache(file, run / BEST, tmp_path / "scaled", teacher_name="own", normalize=True)
    build_base(run, scaled.folder, teacher="own")
    RetrievalAugmentedClassifier.from_folder(run, device="cpu", threads=1)
    other = labelled_cache(file, run / BEST, tmp_path / "cls", teacher_name="own", pooling="cls")
    build_base(run, other.folder, teacher="own", overwrite=True)
    for ask in (RetrievalAugmentedClassifier.from_folder, tune):
        with pytest.raises(DataError, match="pooling 'cls' -> 'mean'"):
            ask(run, device="cpu", threads=1)
