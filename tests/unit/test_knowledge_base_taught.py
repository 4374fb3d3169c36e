"""The knowledge base of a classifier that was taught: its own vectors are its neighbours, and no others."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from classification_helpers import TEXTS, add_projection, labelled_cache, labelled_file, small_teach
from click.testing import CliRunner

from distill import RetrievalAugmentedClassifier
from distill.cli.main import cli
from distill.errors import ConfigError, DataError
from distill.knowledge_base.base import read_base
from distill.knowledge_base.build import build_base, require_base
from distill.knowledge_base.choose import choose, held_out_rows
from distill.knowledge_base.student import open_folder
from distill.layout import BEST, KNOWLEDGE_BASE
from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.keys import key_array
from embedcache.testing import tiny_encoder


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two classifiers taught on the same rows, of other seeds; not to be changed."""
    folder = tmp_path_factory.mktemp("taught")
    encoder, file = tiny_encoder(folder / "tiny", layers=1), labelled_file(folder)
    return [
        small_teach(encoder, file, folder / f"run{seed}", text="text", epochs=1, seed=seed).folder
        for seed in (0, 1)
    ]


@pytest.fixture(scope="module")
def cache(runs, tmp_path_factory) -> Cache:
    """A cache of the vectors and logits of both, and a projection of the first's as wide as they are."""
    folder = tmp_path_factory.mktemp("cache")
    file = labelled_file(folder)
    for number, run in enumerate(runs):
        made = labelled_cache(file, run / "best", folder / "cache", teacher_name=f"number{number}")
    own = made.teacher("number0")
    add_projection(made, "number0", own.contract.dimension)
    return made


@pytest.fixture
def run(runs, tmp_path):
    """A copy of the first, to be changed."""
    return shutil.copytree(runs[0], tmp_path / "run")


def test_its_own_vectors_are_its_base(run, cache):
    base = build_base(run, cache.folder, teacher="number0").base
    classifier = RetrievalAugmentedClassifier.from_folder(run, device="cpu", threads=1, k=1)
    kept = [text for text in TEXTS if base.holds(key_array([text]))[0]][:20]
    # A text finds itself, for the base lies where the classifier's own vectors do.
    assert all(one[0].cosine > 0.999 for one in classifier.neighbours(kept))
    rows = [one[0].row for one in classifier.neighbours(kept)]
    assert np.array_equal(base.keys[rows], key_array(kept))
    assert not base.holds(key_array(open_folder(run).held_out())).any()


def test_a_copy_of_its_folder_takes_them_as_well(run, cache, tmp_path):
    copy = shutil.copytree(run / "best", tmp_path / "copy")
    assert len(build_base(copy, cache.folder, teacher="number0").base) == len(set(TEXTS))


def test_a_projection_of_them_lies_elsewhere(run, cache, tmp_path):
    words = r"^a projection of its own vectors: .*'number0\.projected'.*without its projection with --teacher"
    for model in (run, shutil.copytree(run / "best", tmp_path / "copy")):
        with pytest.raises(DataError, match=words):
            build_base(model, cache.folder, teacher="number0.projected")
    assert not (run / "best" / KNOWLEDGE_BASE).exists()


def test_those_of_another_classifier_do_too(run, runs, cache):
    words = r"^another classifier: .*'number1'.*taught by 'distill teach'.*embedcache build --teacher "
    with pytest.raises(DataError, match=words):
        build_base(run, cache.folder, teacher="number1")
    # Nor may it ask the base of that classifier.
    build_base(run, cache.folder, teacher="number0")
    other = shutil.copytree(runs[1], run.with_name("other"))
    shutil.copytree(run / "best" / KNOWLEDGE_BASE, other / "best" / KNOWLEDGE_BASE)
    with pytest.raises(DataError, match=r"^another classifier: the knowledge base in .*other"):
        require_base(open_folder(other))


def test_it_has_to_be_named(run, cache):
    with pytest.raises(ConfigError, match=r"by 'distill teach', so its base is one of its own vectors"):
        build_base(run, cache.folder)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ({"pooling": "cls"}, r"pooling 'mean' -> 'cls'"),
        ({"max_length": 4}, r"max_length \d+ -> 4"),
        ({"prompt": "film: "}, r"prompt '' -> 'film: '"),
    ],
    ids=lambda one: next(iter(one)) if isinstance(one, dict) else "",
)
def test_its_vectors_given_otherwise_lie_elsewhere(run, cache, tmp_path, setting, told):
    file = labelled_file(tmp_path)
    made = labelled_cache(file, run / "best", tmp_path / "cache", teacher_name="own", **setting)
    words = rf"^its own vectors, but given otherwise: .*'own'.*{told}.*no other setting of the teacher"
    for model in (run, shutil.copytree(run / BEST, tmp_path / "copy")):
        with pytest.raises(DataError, match=words):
            build_base(model, made.folder, teacher="own")
        assert not (open_folder(model).folder / KNOWLEDGE_BASE).exists()
    # Nor is such a base asked, should there be one.
    base = build_base(run, cache.folder, teacher="number0").base
    given = {**base.origin.encoder, **setting}
    replace(base, origin=replace(base.origin, encoder=given)).write(run / BEST)
    for ask in (
        lambda: RetrievalAugmentedClassifier.from_folder(run, device="cpu", threads=1),
        lambda: choose(run, cache=cache.folder, device="cpu", threads=1),
    ):
        with pytest.raises(DataError, match=rf"^its own vectors, but .*the knowledge base in .*{told}"):
            ask()
    assert RetrievalAugmentedClassifier.from_folder(run, retrieval=False, device="cpu").base is None


def test_vectors_that_were_scaled_are_its_own(run, tmp_path):
    file = labelled_file(tmp_path)
    made = labelled_cache(file, run / "best", tmp_path / "cache", teacher_name="own", normalize=True)
    base = build_base(run, made.folder, teacher="own").base
    classifier = RetrievalAugmentedClassifier.from_folder(run, device="cpu", threads=1, k=1)
    kept = next(text for text in TEXTS if base.holds(key_array([text]))[0])
    assert classifier.neighbours([kept])[0][0].cosine > 0.999


def test_a_base_of_an_older_version_says_less_and_is_asked(run, cache):
    base = build_base(run, cache.folder, teacher="number0").base
    replace(base, origin=replace(base.origin, encoder=None)).write(run / BEST)
    assert RetrievalAugmentedClassifier.from_folder(run, device="cpu", threads=1).base is not None


def test_the_rows_of_its_file_may_be_a_corpus_of_another_name(run, tmp_path):
    file = labelled_file(tmp_path).rename(tmp_path / "films.tsv")
    made = labelled_cache(file, run / "best", tmp_path / "cache", teacher_name="own")
    student = open_folder(run)
    assert student.corpus != "films"
    assert student.find_corpus(made).name == "films"
    build_base(run, made.folder, teacher="own")
    assert [corpus["name"] for corpus in read_base(run / BEST).corpora] == ["films"]
    assert held_out_rows(student, made.folder).texts == student.held_out()
    # The labels of a taught run lie in a file; which cache has them as well, it does not know.
    with pytest.raises(DataError, match="which cache has their labels: name it with --cache"):
        choose(run, device="cpu", threads=1)
    assert choose(run, cache=made.folder, device="cpu", threads=1).chosen.rows == len(student.held_out())
    # Of several, one has to be named.
    other = labelled_file(tmp_path).rename(tmp_path / "series.tsv")
    made = labelled_cache(other, run / "best", made.folder, teacher_name="own")
    with pytest.raises(InputError, match=r"\(films, series\)"):
        student.find_corpus(made)
    asked = ("kb", "tune", str(run), "--cache", str(made.folder), "--device", "cpu", "--threads", "1")
    done = CliRunner().invoke(cli, [*asked, "--corpus", "series"], catch_exceptions=False)
    assert "rows of corpus 'series' held out by the run" in done.stdout
