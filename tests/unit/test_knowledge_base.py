"""Knowledge bases: their graph, what goes in, the files, and the students that may search them."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from classification_helpers import TEXTS as ANIMALS
from classification_helpers import add_projection, labelled_cache, labelled_file, small_teach
from knowledge_base_helpers import (
    HELD,
    LABELS,
    TEXTS,
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
from distill.reaugkd.header import CHOSEN, HEADER, INDEX, ROWS, Chosen, Header
from distill.reaugkd.header import TEXTS as TEXTS_FILE
from distill.reaugkd.index import CODECS, EFFORTS, USUAL_EFFORT, IndexSettings, NeighbourIndex
from distill.reaugkd.knowledge_base import KnowledgeBase, add_rows, build_base, require_base, require_header
from distill.reaugkd.student import open_student
from distill.reaugkd.tune import held_out_rows, tune
from embedcache.errors import CorruptCacheError, InputError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.keys import key_array
from embedcache.testing import sentences, tiny_encoder

GOLDEN = Path(__file__).parents[1] / "gate" / "golden"
VECTORS, QUERIES = clusters(700, 24), clusters(50, 24, seed=1)
MORE = sentences(25, seed=77, longest=9)
EXACT = IndexSettings(codec="float32", ef_search=64)
KEPT = [text for text in TEXTS if text not in HELD]
CHOICE = Chosen(
    k=5,
    beta=0.4,
    source="rows",
    digest="d",
    rows=3,
    accuracy=0.9,
    without=0.8,
    base_rows=46,
    lead=(-0.05, 0.2),
)


# --- the graph ---


@pytest.mark.parametrize("codec", CODECS)
def test_the_graph_finds_the_nearest(codec):
    index = NeighbourIndex.build(VECTORS, IndexSettings(codec=codec))
    rows, cosines = index.search(QUERIES, 10)
    true = np.sort(QUERIES @ VECTORS.T, axis=1)[:, :-11:-1]
    assert np.abs(cosines - true).max() < {"float32": 1e-5, "float16": 1e-3, "int8": 0.02}[codec]
    assert np.array_equal(rows, np.argsort(-(QUERIES @ index.vectors().T), axis=1)[:, :10])
    assert np.array_equal(rows, index.exact(QUERIES, 10)[0])
    assert index.recall(QUERIES, 10).recall == 1


def test_an_index_is_a_function_of_its_rows_and_survives_saving_and_appending():
    index = NeighbourIndex.build(VECTORS[:500], EXACT)
    data = index.to_bytes()
    assert data == NeighbourIndex.build(VECTORS[:500], EXACT).to_bytes()
    assert data != NeighbourIndex.build(VECTORS[499::-1].copy(), EXACT).to_bytes()
    loaded = NeighbourIndex.from_bytes(data, EXACT)
    assert np.array_equal(index.search(QUERIES, 10)[1], loaded.search(QUERIES, 10)[1])
    loaded.add(VECTORS[500:])
    assert np.array_equal(loaded.vectors(), VECTORS)
    assert loaded.search(VECTORS[650:], 1)[0][:, 0].tolist() == list(range(650, 700))


def test_more_neighbours_than_rows_are_all_rows():
    assert NeighbourIndex.build(VECTORS[:4], EXACT).search(QUERIES, 10)[0].shape == (50, 4)


def test_bytes_of_something_else_and_links_that_lead_outside_are_refused():
    import faiss

    with pytest.raises(ValueError, match="faiss cannot read"):
        NeighbourIndex.from_bytes(b"not an index at all", EXACT)
    flat = faiss.IndexFlatIP(24)
    with pytest.raises(ValueError, match="IndexFlatIP"):
        NeighbourIndex.from_bytes(faiss.serialize_index(flat).tobytes(), EXACT)
    index = NeighbourIndex.build(VECTORS[:40], EXACT)
    links = faiss.vector_to_array(index._index.hnsw.neighbors)
    links[links >= 0] = 10**6
    faiss.copy_array_to_vector(links, index._index.hnsw.neighbors)
    with pytest.raises(ValueError, match=r"links|faiss cannot read"):
        NeighbourIndex.from_bytes(index.to_bytes(), EXACT)


@pytest.mark.parametrize("changes", [{"m": 1}, {"m": 10**6}, {"ef_search": 0}, {"codec": "pq"}])
def test_settings_out_of_range_are_refused(changes):
    with pytest.raises(ValueError, match=next(iter(changes))):
        IndexSettings(**changes)


def test_a_search_is_as_long_as_it_takes_to_find_nearly_all():
    easy = NeighbourIndex.build(VECTORS, IndexSettings())
    assert easy.settle(clusters(200, 24, seed=5)) >= 0.99
    assert easy.settings.ef_search == EFFORTS[0]
    noise = np.random.default_rng(3).normal(size=(2200, 96)).astype(np.float32)
    noise /= np.linalg.norm(noise, axis=1, keepdims=True)
    sparse = NeighbourIndex.build(noise[:2000], IndexSettings(m=4, ef_construction=10, codec="float32"))
    recall, effort = sparse.settle(noise[2000:]), sparse.settings.ef_search
    assert effort > EFFORTS[0]
    assert sparse.recall(noise[2000:], 10).recall == recall
    sparse.search_with(EFFORTS[EFFORTS.index(effort) - 1])
    assert sparse.recall(noise[2000:], 10).recall < min(0.99, recall)


def test_with_few_queries_a_search_is_as_long_as_usual_or_as_measured_before():
    index = NeighbourIndex.build(VECTORS, IndexSettings())
    assert index.settle(QUERIES) is None
    assert index.settings.ef_search == USUAL_EFFORT
    index.search_with(512)
    assert index.settle(QUERIES) is None
    assert index.settings.ef_search == 512


# --- build and add ---


@pytest.fixture
def cache(tmp_path):
    return make_cache(tmp_path / "cache")


@pytest.fixture
def run(tmp_path, cache):
    return make_run(tmp_path / "run", cache, contracts()[1])


def contents(model: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((model / BEST / KNOWLEDGE_BASE).iterdir())}


def keep(run: Path, choice: Chosen, keys) -> None:
    base = KnowledgeBase.read(run / BEST)
    header = base.header.model_copy(update={"chosen": choice})
    replace(base, header=header, chosen_keys=keys).write(run / BEST)


def test_a_base_holds_vectors_and_soft_labels_of_all_but_the_held_out_rows(tmp_path, run):
    cache = make_cache(tmp_path / "twice", [*TEXTS, *TEXTS[20:25]])
    made = build_base(run, cache.folder, settings=EXACT, texts=True)
    assert (made.added, made.held_out, made.repeated, made.known) == (len(KEPT), len(HELD), 5, 0)
    base = require_base(open_student(run))
    assert np.array_equal(base.keys, key_array(KEPT))
    assert np.allclose(base.index.vectors(), teacher_vectors(KEPT), atol=1e-6)
    assert np.allclose(base.soft_labels, softmax(teacher_logits(KEPT), axis=1), atol=1e-6)
    assert (base.texts, base.header.tau, base.header.origin.labels) == (tuple(KEPT), 0.2, LABELS)
    assert not base.holds(key_array(HELD)).any()


def test_the_same_rows_give_the_same_bytes_and_a_base_is_not_replaced_unasked(run, cache):
    build_base(run, cache.folder, texts=True)
    first = contents(run)
    assert set(first) == {HEADER, INDEX, ROWS, TEXTS_FILE}
    with pytest.raises(ConfigError, match="--overwrite"):
        build_base(run, cache.folder)
    build_base(run, cache.folder, texts=True, overwrite=True)
    assert contents(run) == first
    build_base(run, cache.folder, overwrite=True)
    assert set(contents(run)) == {HEADER, INDEX, ROWS}
    assert len(list((run / BEST).iterdir())) == 3


def test_another_corpus_is_added_without_training(tmp_path, run, cache):
    before = build_base(run, cache.folder, settings=EXACT, texts=True).base
    keep(run, CHOICE, key_array(HELD[:3]))
    more = make_cache(tmp_path / "more", [*MORE, *TEXTS[20:23], *HELD[:2]], name="more")
    added = add_rows(run, more.folder)
    assert (added.added, added.known, added.held_out) == (len(MORE), 3, 2)
    base = require_base(open_student(run))
    assert base.texts == (*before.texts, *MORE)
    assert [corpus.name for corpus in base.header.corpora] == ["films", "more"]
    rows, _ = base.index.search(teacher_vectors(MORE), 1)
    assert rows[:, 0].tolist() == list(range(len(before), len(base)))
    assert np.array_equal(base.soft_labels[rows[:, 0]].argmax(axis=1), sentiment(MORE))
    assert base.header.chosen == CHOICE
    assert np.array_equal(base.chosen_keys, key_array(HELD[:3]))
    with pytest.raises(DataError, match="no new row"):
        add_rows(run, more.folder)


def test_a_bigger_base_is_measured_again_unless_its_search_was_asked_for(tmp_path, run, cache, monkeypatch):
    monkeypatch.setattr("distill.reaugkd.index.FEWEST_QUERIES", len(HELD))
    assert build_base(run, cache.folder).recall >= 0.99
    assert Header.read(run / BEST).index.is_settled
    monkeypatch.setattr("distill.reaugkd.index.EFFORTS", (48, 64))
    more = make_cache(tmp_path / "more", [*MORE, *HELD], name="more")
    assert add_rows(run, more.folder).recall >= 0.99
    assert Header.read(run / BEST).index.ef_search == 48
    assert build_base(run, cache.folder, settings=EXACT, overwrite=True).recall is None
    assert add_rows(run, more.folder).recall is None
    assert Header.read(run / BEST).index == EXACT


@pytest.mark.parametrize("lacking", ["vectors", "logits"])
def test_missing_vectors_are_named(tmp_path, run, lacking):
    cache = make_cache(tmp_path / "part")
    shutil.rmtree(cache.teacher_folder(contracts()[1 if lacking == "vectors" else 2]) / "shards")
    with pytest.raises(DataError, match=r"46 of 46 texts .* no vector of teacher"):
        build_base(run, cache.folder)
    assert KnowledgeBase.read(run / BEST) is None


def test_vectors_of_zeros_are_refused(tmp_path, run, monkeypatch):
    monkeypatch.setattr("knowledge_base_helpers.teacher_vectors", lambda texts: 0 * teacher_vectors(texts))
    other = make_cache(tmp_path / "zeros")
    with pytest.raises(DataError, match="zeros"):
        build_base(run, other.folder)


# --- files ---


def test_the_form_on_disk_is_that_of_the_golden_base(tmp_path):
    base = KnowledgeBase.read(GOLDEN)
    assert (len(base), base.header.chosen.k, len(base.texts), len(base.chosen_keys)) == (71, 5, 71, 3)
    base.write(tmp_path)
    for path in (GOLDEN / KNOWLEDGE_BASE).iterdir():
        assert (tmp_path / KNOWLEDGE_BASE / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("name", [HEADER, INDEX, ROWS, TEXTS_FILE, CHOSEN])
@pytest.mark.parametrize("how", ["flipped", "cut", "missing", "linked"])
def test_damage_of_any_file_is_found(tmp_path, name, how):
    path = shutil.copytree(GOLDEN / KNOWLEDGE_BASE, tmp_path / KNOWLEDGE_BASE) / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.unlink()
    if how == "linked":
        path.symlink_to(GOLDEN / KNOWLEDGE_BASE / name)
    elif how != "missing":
        path.write_bytes(data if how == "flipped" else data[: len(data) // 2])
    with pytest.raises(CorruptCacheError, match=r"knowledge base .* is damaged"):
        KnowledgeBase.read(tmp_path)


@pytest.mark.parametrize(
    "changes", [{"rows": 72}, {"dimension": 9}, {"version": 2}, {"surprise": 1}, {"files": {}}, {"tau": -1}]
)
def test_a_header_that_does_not_fit_the_files_is_refused(tmp_path, changes):
    folder = shutil.copytree(GOLDEN / KNOWLEDGE_BASE, tmp_path / KNOWLEDGE_BASE)
    write_sealed_json(folder / HEADER, {**read_sealed_json(folder / HEADER), **changes})
    with pytest.raises(CorruptCacheError):
        KnowledgeBase.read(tmp_path)


def test_a_base_that_is_replaced_while_it_is_read_is_read_again(tmp_path, run, cache, monkeypatch):
    build_base(run, cache.folder)
    more = make_cache(tmp_path / "more", MORE, name="more")
    from_bytes, left = NeighbourIndex.from_bytes, [1]

    def slow(data, settings):
        if left and left.pop():
            add_rows(run, more.folder)
        return from_bytes(data, settings)

    monkeypatch.setattr(NeighbourIndex, "from_bytes", slow)
    assert len(KnowledgeBase.read(run / BEST)) == len(KEPT) + len(MORE)


def test_the_header_is_read_without_the_vectors(run, cache):
    build_base(run, cache.folder)
    (run / BEST / KNOWLEDGE_BASE / INDEX).write_bytes(b"damaged")
    assert require_header(open_student(run)).rows == len(KEPT)
    shutil.rmtree(run / BEST / KNOWLEDGE_BASE)
    with pytest.raises(DataError, match="no knowledge base"):
        require_header(open_student(run))


def test_a_base_of_an_older_version_says_less(tmp_path):
    folder = shutil.copytree(GOLDEN / KNOWLEDGE_BASE, tmp_path / KNOWLEDGE_BASE)
    value = read_sealed_json(folder / HEADER)
    del value["origin"]["encoder"], value["origin"]["classifier"]
    del value["index"]["is_settled"], value["chosen"]["lead"]
    write_sealed_json(folder / HEADER, value)
    header = KnowledgeBase.read(tmp_path).header
    assert (header.origin.encoder, header.index.is_settled) == (None, False)
    assert not header.chosen.within_chance
    assert CHOICE.within_chance
    assert not CHOICE.model_copy(update={"lead": (0.01, 0.2)}).within_chance


# --- students ---


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ({"weights": "b"}, "another teacher"),
        ({"projection": "q"}, "another projection of the same teacher"),
        ({"labels": ("good", "bad")}, "another label set"),
    ],
)
def test_a_base_of_other_vectors_is_refused_by_name(tmp_path, run, cache, of, said):
    others = make_cache(tmp_path / "others", **of)
    with pytest.raises(DataError, match=f"^{said}: .*tiny.projected"):
        build_base(run, others.folder, teacher="tiny.projected")
    if "labels" not in of:
        # Nor is it searched by a student that it is copied to.
        build_base(run, cache.folder)
        stranger = make_run(tmp_path / "stranger", cache, contracts(**of)[1])
        shutil.copytree(run / BEST / KNOWLEDGE_BASE, stranger / BEST / KNOWLEDGE_BASE)
        with pytest.raises(DataError, match=f"^{said}.*the knowledge base in .*stranger"):
            require_base(open_student(stranger))


def test_the_teacher_with_and_without_its_projection_are_told_apart(tmp_path, cache):
    base, projected, _ = contracts()
    with pytest.raises(DataError, match=r"^the same teacher without its projection"):
        build_base(make_run(tmp_path / "a", cache, projected), cache.folder, teacher="tiny")
    with pytest.raises(DataError, match=r"^a projection of the same teacher"):
        build_base(make_run(tmp_path / "b", cache, base), cache.folder, teacher="tiny.projected")


@pytest.mark.parametrize("loss", ["kd", "rkd-kd"])
def test_a_student_whose_loss_brings_it_near_no_teacher_has_no_neighbours(tmp_path, cache, loss):
    with pytest.raises(DataError, match=f"loss {loss} and has no neighbours"):
        build_base(make_run(tmp_path / loss, cache, contracts()[1], loss=loss), cache.folder)


def test_another_width_is_refused_and_a_copied_folder_needs_a_teacher(tmp_path, run, cache):
    build_base(run, cache.folder)
    copy = Path(shutil.copytree(run / BEST, tmp_path / "copy"))
    assert len(require_base(open_student(copy))) == len(KEPT)
    with pytest.raises(ConfigError, match="--teacher"):
        build_base(copy, cache.folder, overwrite=True)
    head(width=9).write(copy)
    with pytest.raises(DataError, match=r"^another width: .*--dim 9"):
        require_base(open_student(copy))


def test_another_classifiers_rows_and_a_cache_without_the_teacher_are_refused(tmp_path, run, cache):
    build_base(run, cache.folder)
    other = make_cache(tmp_path / "other", MORE, name="more", labels=("good", "bad"))
    with pytest.raises(DataError, match="another classifier"):
        add_rows(run, other.folder)
    other = make_cache(tmp_path / "third", MORE, name="more", projection="q")
    with pytest.raises(DataError, match=r"no teacher 'tiny\.projected'"):
        add_rows(run, other.folder)


def test_folders_without_a_classifier_or_a_sound_record_are_refused(tmp_path, run):
    with pytest.raises(ConfigError):
        open_student(tmp_path / "missing")
    (run / RECORD).write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match="record"):
        open_student(run)
    (run / BEST / "classifier.safetensors").write_bytes(b"nothing")
    with pytest.raises(CorruptCacheError, match="classifier"):
        open_student(run)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no classifier"):
        open_student(tmp_path / "empty")


def test_held_out_rows_come_with_the_labels_of_the_corpus(tmp_path, run, cache):
    rows = held_out_rows(open_student(run))
    assert (rows.texts, rows.labels) == (HELD, [LABELS[number] for number in sentiment(HELD)])
    changed = make_cache(tmp_path / "changed", TEXTS[1:])
    rows = held_out_rows(open_student(run), changed.folder)
    assert rows.texts == HELD[1:]
    assert rows.described.startswith("1 of 14")
    with pytest.raises(InputError, match="no corpus 'series'"):
        held_out_rows(open_student(run), None, "series")
    shutil.rmtree(cache.folder)
    with pytest.raises(DataError, match="--cache"):
        held_out_rows(open_student(run))
    (run / HELD_OUT).unlink()
    with pytest.raises(DataError, match="--data FILE"):
        held_out_rows(open_student(run), changed.folder)


# --- classifiers trained on labels alone ---


@pytest.fixture(scope="module")
def taught(tmp_path_factory):
    """Two classifiers of other seeds, and a cache of their vectors, logits and a projection; read only."""
    folder = tmp_path_factory.mktemp("taught")
    encoder, file = tiny_encoder(folder / "tiny", layers=1), labelled_file(folder)
    runs = [
        small_teach(encoder, file, folder / f"run{seed}", text="text", epochs=1, seed=seed).folder
        for seed in (0, 1)
    ]
    for number, run in enumerate(runs):
        cache = labelled_cache(file, run / "best", folder / "cache", teacher_name=f"number{number}")
    add_projection(cache, "number0", cache.teacher("number0").contract.dimension)
    return runs[0], cache


def test_a_taught_classifier_searches_its_own_vectors(taught, tmp_path):
    run, cache = Path(shutil.copytree(taught[0], tmp_path / "run")), taught[1]
    with pytest.raises(ConfigError, match="without a teacher"):
        build_base(run, cache.folder)
    for model in (run, shutil.copytree(run / BEST, tmp_path / "copy")):
        with pytest.raises(DataError, match=r"^a projection of its vectors"):
            build_base(model, cache.folder, teacher="number0.projected")
    with pytest.raises(DataError, match=r"^another classifier: .*'number1'"):
        build_base(run, cache.folder, teacher="number1")
    base = build_base(run, cache.folder, teacher="number0").base
    classifier = RetrievalAugmentedClassifier.from_folder(run, device="cpu", threads=1, k=1)
    kept = [text for text in ANIMALS if base.holds(key_array([text]))[0]][:20]
    assert all(one[0].cosine > 0.999 for one in classifier.neighbours(kept))
    assert tune(run, cache=cache.folder, device="cpu", threads=1).chosen.rows > 10


def test_its_vectors_of_other_settings_are_refused_and_scaled_ones_are_not(taught, tmp_path):
    run, file = Path(shutil.copytree(taught[0], tmp_path / "run")), labelled_file(tmp_path)
    other = labelled_cache(file, run / BEST, tmp_path / "cls", teacher_name="own", pooling="cls")
    with pytest.raises(DataError, match=r"other settings .*pooling"):
        build_base(run, other.folder, teacher="own")
    scaled = labelled_cache(file, run / BEST, tmp_path / "scaled", teacher_name="own", normalize=True)
    base = build_base(run, scaled.folder, teacher="own").base
    encoder = {**base.header.origin.encoder, "pooling": "cls"}
    origin = base.header.origin.model_copy(update={"encoder": encoder})
    replace(base, header=base.header.model_copy(update={"origin": origin})).write(run / BEST)
    for ask in (RetrievalAugmentedClassifier.from_folder, tune):
        with pytest.raises(DataError, match=r"other settings .*pooling"):
            ask(run, device="cpu", threads=1)
