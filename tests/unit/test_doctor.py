"""Doctor: planted faults are found and counted exactly, and a sound cache is called sound."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from check_helpers import run
from numpy.typing import NDArray
from small_caches import KINDS, add_corpus

from embedcache.cache import Cache
from embedcache.codecs import CODEC_NAMES, Stored, get_codec
from embedcache.corpus.folding import fold
from embedcache.corpus.view_store import store_view
from embedcache.doctor import Diagnosis, Finding, examine
from embedcache.doctor.codec_loss import compare_codecs
from embedcache.doctor.texts import read_evaluation_sets
from embedcache.errors import InputError
from embedcache.keys import key_array
from embedcache.store import VectorBatch
from embedcache.testing import example_contract, sentences
from embedcache.views.recipe import Recipe

WIDTH = 32
TEXTS = sentences(600, seed=1)
OTHERS = [f"nothing like it, number {number} of many" for number in range(100)]
Vectors = NDArray[np.float32]


def unit(rows: int, *, seed: int = 0) -> Vectors:
    """Random directions, evenly spread."""
    vectors = np.random.default_rng(seed).normal(size=(rows, WIDTH))
    return np.float32(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))


def batch_of(texts: Sequence[str], vectors: Vectors, truncated: int = 0) -> VectorBatch:
    """A batch of texts of 5 tokens, of which the first ``truncated`` were cut off."""
    return VectorBatch(
        key_array(texts), vectors, np.full(len(texts), 5, np.int32), np.arange(len(texts)) < truncated
    )


def put(cache: Cache, batch: VectorBatch, *, normalize: bool = True) -> None:
    """Store float32 vectors as they are: nothing that is broken about them is refused."""
    store = cache.store(example_contract(WIDTH, normalize=normalize), "float32")
    cosines = {"mean_cosine": 1.0, "worst_cosine": 1.0}
    store.put_stored(get_codec("float32"), Stored(batch.vectors), batch, cosines)
    store.finish()


def make_cache(
    folder: Path,
    vectors: Vectors,
    texts: Sequence[str] = TEXTS,
    *,
    truncated: int = 0,
    normalize: bool = True,
) -> Cache:
    """A cache of one corpus and one teacher, with a vector for each of the first texts."""
    cache = Cache.create(folder)
    cache.register_teacher("teacher", example_contract(WIDTH, normalize=normalize), {})
    add_corpus(cache, "corpus", list(texts))
    put(cache, batch_of(texts[: len(vectors)], vectors, truncated), normalize=normalize)
    return cache


def finding(diagnosis: Diagnosis, name: str) -> Finding:
    (found,) = [one for one in diagnosis.findings if one.name == name]
    return found


def levels(diagnosis: Diagnosis) -> dict[str, str]:
    """The findings that are not ok."""
    return {one.name: one.level for one in diagnosis.findings if one.level != "ok"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return make_cache(tmp_path_factory.mktemp("sound") / "c", unit(600))


@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_no_codec_or_store_makes_a_sound_cache_look_broken(tmp_path: Path, codec: str) -> None:
    cache, contract = Cache.create(tmp_path / "c"), example_contract(WIDTH)
    cache.register_teacher("teacher", contract, {})
    add_corpus(cache, "corpus", TEXTS)
    store = cache.store(contract, codec, KINDS[codec])
    store.put(batch_of(TEXTS, unit(600)))
    store.finish()
    diagnosis = examine(cache)
    assert (levels(diagnosis), len(diagnosis.findings)) == ({}, 9)


def plant(rows: Any, value: float, vectors: Vectors) -> None:
    vectors[rows] = value


def scale(rows: Any, factor: float, vectors: Vectors) -> None:
    vectors[rows] *= np.float32(factor)


def cone(share: float, vectors: Vectors) -> None:
    """Give random pairs a mean cosine of ``share``."""
    vectors *= np.float32(np.sqrt(1 - share))
    vectors[:, 0] += np.float32(np.sqrt(share))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)


def copies(count: int, vectors: Vectors) -> None:
    """Make a number of rows equal to the one before them."""
    vectors[100 : 100 + count] = vectors[99]


@pytest.mark.parametrize(
    ("normalize", "change", "name", "level"),
    [
        (True, partial(plant, 17, -np.inf), "NaN or infinite", "bad"),
        (True, partial(scale, 77, 0.9), "lengths of vectors", "bad"),
        (False, partial(scale, 77, 1e20), "outliers", "look"),
        (True, partial(copies, 10), "identical vectors", "look"),
        (True, partial(cone, 0.7), "mean cosine", "look"),
        (True, partial(cone, 0.96), "mean cosine", "bad"),
        (False, partial(plant, np.s_[:, 1:], 0.1), "unused directions", "look"),
    ],
)
def test_planted_faults_in_vectors_are_found(
    tmp_path: Path, normalize: bool, change: Callable[[Vectors], None], name: str, level: str
) -> None:
    vectors = unit(600)
    change(vectors)
    diagnosis = examine(make_cache(tmp_path / "c", vectors, normalize=normalize))
    assert finding(diagnosis, name).level == level
    json.dumps(asdict(diagnosis), allow_nan=False)


def test_broken_and_equal_vectors_are_counted_named_and_spoil_no_other_figure(tmp_path: Path) -> None:
    vectors = unit(600)
    vectors[[17, 400]], vectors[[5, 599]] = np.nan, 0
    copies(10, vectors)
    diagnosis = examine(make_cache(tmp_path / "c", vectors))
    broken = {"NaN or infinite": "bad", "zero vectors": "bad"}
    assert levels(diagnosis) == {**broken, "identical vectors": "look"}
    for name, rows in (("NaN or infinite", (17, 400)), ("zero vectors", (5, 599))):
        assert finding(diagnosis, name).value == 2
        assert set(finding(diagnosis, name).examples) == {(TEXTS[row],) for row in rows}
    (alike,) = finding(diagnosis, "identical vectors").examples
    assert set(alike) < set(TEXTS[99:110])


def test_missing_repeated_and_truncated_texts_are_counted(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c", unit(590), [*TEXTS, *TEXTS[:400]], truncated=59)
    # A key in two shards is one vector.
    put(cache, batch_of(TEXTS[100:300], unit(590)[100:300]))
    diagnosis = examine(cache)
    missing = finding(diagnosis, "missing vectors: corpus")
    assert (missing.level, missing.figure) == ("bad", "10 of 600 texts")
    assert missing.examples == tuple((text,) for text in TEXTS[590:595])
    repeated, truncated = (finding(diagnosis, one) for one in ("repeated texts: corpus", "truncated texts"))
    assert (repeated.level, repeated.value) == ("look", 400 / 1000)
    assert (truncated.level, truncated.value) == ("look", 59 / 590)


def test_a_named_corpus_is_judged_by_its_own_vectors(tmp_path: Path) -> None:
    vectors = unit(600)
    vectors[550] = np.nan
    cache = make_cache(tmp_path / "c", vectors)
    for name, texts in {"first": TEXTS[:500], "second": TEXTS[500:], "foreign": OTHERS}.items():
        add_corpus(cache, name, texts)
    assert levels(examine(cache, corpus="first")) == {}
    assert levels(examine(cache, corpus="second")) == {"NaN or infinite": "bad"}
    assert levels(examine(cache))["missing vectors: foreign"] == "look"


# Texts of evaluation sets


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("do n't do it , please", "Don't do it, please!", True),
        ("two\u00a0 blanks\there", "two blanks here", True),
        ("ﬁne Straße cafe\u0301", "FINE STRASSE café", True),
        ("cafe", "café", False),
        ("!!!", "???", False),
    ],
)
def test_folding_ignores_case_spacing_and_punctuation_alone(one: str, other: str, equal: bool) -> None:
    assert (fold(one) == fold(other)) == equal


def test_evaluation_texts_are_counted_in_any_spelling_in_corpora_and_views(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "c", unit(600))
    add_corpus(cache, "second", OTHERS[:5])
    recipe = Recipe("column-de", "column", {"column": "de"})
    store_view(cache.corpus("corpus"), recipe, lambda _, texts: [f"translated {text}" for text in texts])
    path = tmp_path / "set.txt"
    lines = [OTHERS[3], TEXTS[9].upper() + " !", f"Translated {TEXTS[0]} .", f"{TEXTS[2]} more"]
    path.write_text("\n".join(lines))
    found = finding(examine(cache, evaluation_sets=[path]), "evaluation texts: set.txt")
    assert (found.level, found.value) == ("bad", 3 / 4)
    assert found.examples == ((OTHERS[3],), (TEXTS[9],), (f"translated {TEXTS[0]}",))
    of_one = examine(cache, corpus="corpus", evaluation_sets=[path])
    assert finding(of_one, "evaluation texts: set.txt").value == 2 / 4


def test_every_format_is_read_and_training_rows_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one text\n\nword\nother text\n")
    (tmp_path / "b.csv").write_text('id,text\n1,"one text"\n2,"other text"\n')
    (tmp_path / "c.jsonl").write_text('{"score": 1, "q": "one text"}\n{"q": "a text", "split": "train"}\n')
    with gzip.open(tmp_path / "d.tsv.gz", "wt") as file:
        file.write('subset\tpremise\ttext2\ntest\t"one text\t一只猫\ntraining\tother text\tmore text\n')
    (tmp_path / "sets_train.txt").write_text("other text")
    (tmp_path / "README.md").write_text("some words")
    assert read_evaluation_sets([tmp_path]) == {
        "a.txt": ["one text", "other text"],
        "b.csv": ["one text", "other text"],
        "c.jsonl": ["one text"],
        "d.tsv.gz": ['"one text', "一只猫"],
    }


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("missing.txt", None),
        ("notes.md", b"words here"),
        ("numbers.tsv", b"id\tscore\n1\t2\n"),
        ("lines.jsonl", b"no json\n"),
        ("cut.tsv.gz", gzip.compress(b"text\n" + b"words and words\n" * 1000, mtime=0)[:40]),
    ],
)
def test_a_set_that_cannot_be_read_is_refused_by_name(
    sound: Cache, tmp_path: Path, name: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=name):
        examine(sound, evaluation_sets=[tmp_path / name])


# Codecs


def test_coarser_codecs_lose_more_and_one_that_does_not_fit_says_why() -> None:
    losses = list(compare_codecs(unit(1200)))
    assert [loss.bytes_per_vector for loss in losses] == [128, 64, 36, 8]
    for figure in ("mean_cosine", "worst_cosine", "neighbours_kept"):
        figures = [getattr(loss, figure) for loss in losses]
        assert figures == sorted(figures, reverse=True)
        assert figures[0] == pytest.approx(1)
    misfits = {loss.codec: loss.note for loss in compare_codecs(np.float32(1e6) * unit(300)) if loss.note}
    assert misfits.keys() == {"float16", "pq"}
    assert "256" in misfits["pq"]


def test_the_command_prints_findings_examples_and_codecs(tmp_path: Path) -> None:
    vectors = unit(600)
    vectors[3] = np.nan
    words = ["doctor", "--cache", make_cache(tmp_path / "c", vectors).folder, "--codecs"]
    code, shown = run(*words)
    assert code == 0
    assert repr(TEXTS[3]) in shown
    assert "float32 *" in shown
    found = json.loads(run(*words, "--json")[1])
    assert [one["codec"] for one in found["codecs"]] == list(CODEC_NAMES)
    assert [one["name"] for one in found["findings"] if one["level"] == "bad"] == ["NaN or infinite"]


def test_impossible_examinations_are_refused(sound: Cache, tmp_path: Path) -> None:
    for settings in ({"corpus": "x"}, {"teacher": "x"}):
        with pytest.raises(InputError, match="'x'"):
            examine(sound, **settings)  # type: ignore[arg-type]
    empty = Cache.create(tmp_path / "e")
    empty.register_teacher("teacher", example_contract(WIDTH), {})
    with pytest.raises(InputError, match="embedcache build"):
        examine(empty)
    (path := tmp_path / "set.txt").write_text("words here\n")
    with pytest.raises(InputError, match="no corpus"):
        examine(empty, evaluation_sets=[path])


def test_truncated_vectors_are_no_unit_vectors(tmp_path: Path) -> None:
    contract = example_contract(8, normalize=True, truncate_dim=8)
    cache = Cache.create(tmp_path / "cache")
    add_corpus(cache, "x", TEXTS)
    cache.register_teacher("cut", contract, {})
    cache.store(contract, "float32").put(batch_of(TEXTS, unit(len(TEXTS))[:, :8]))
    assert [one.level for one in examine(cache).findings if one.name == "outliers"] == ["ok"]
    assert not [one for one in examine(cache).findings if one.name == "lengths of vectors"]
