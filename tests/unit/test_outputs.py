"""Logits of a classifier beside the vectors of its encoder: two builds, two stores, two contracts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flat_build import build
from pair_helpers import LABELS, add_classifier, classifier_folder, joined, pair_file

from embedcache.cache import Cache
from embedcache.errors import ContractMismatchError, CorruptCacheError, InputError, TeacherError
from embedcache.teacher.classifier import CLASSIFIER, WEIGHTS, ClassifierHead, logits_contract
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import load_by_contract, load_teacher, logits_teacher
from embedcache.testing import encode_texts, tiny_encoder

TEXTS = joined(40)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return classifier_folder(tmp_path / "model")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return pair_file(tmp_path / "pairs.tsv", 40)


def make(file: Path, teacher: object, cache: Path, **settings: object) -> Cache:
    chosen = {"compute_dtype": "float32", "codec": "float32", "shard_rows": 8, "threads": 1, **settings}
    columns = {"text_column": "premise", "text2_column": "hypothesis"}
    return build(file, teacher=teacher, cache=cache, **columns, **chosen)


def shards(cache: Path) -> dict[str, bytes]:
    return {str(p.relative_to(cache)): p.read_bytes() for p in cache.glob("teachers/*/shards/*.arrow")}


def head_of(folder: Path) -> ClassifierHead:
    head = ClassifierHead.read(folder)
    assert head is not None
    return head


def test_logits_are_a_build_and_a_teacher_of_their_own(file: Path, folder: Path, tmp_path: Path) -> None:
    cache = make(file, folder, tmp_path / "cache")
    before = shards(cache.folder)
    cache = make(file, folder, tmp_path / "cache", output="logits")
    assert cache.result is not None
    assert (cache.result.teacher, cache.result.output, cache.result.encoded) == ("model.logits", "logits", 40)
    assert before.items() < shards(cache.folder).items()
    vectors, logits = cache.lookup(TEXTS, "model"), cache.lookup(TEXTS, "model.logits")
    np.testing.assert_allclose(logits, head_of(folder).logits(vectors), atol=1e-5)
    only = make(file, folder, tmp_path / "only", output="logits")
    assert [one.name for one in only.teachers()] == ["model.logits"]
    assert np.array_equal(only.lookup(TEXTS), logits)
    with pytest.raises(InputError, match="embedding or logits"):
        make(file, folder, tmp_path / "both", output="embedding,logits")
    assert not (tmp_path / "both").exists()


def test_the_contract_of_logits_names_the_classifier_and_not_how_vectors_are_kept(folder: Path) -> None:
    teacher = load_teacher(folder, device="cpu")
    logits = logits_teacher(teacher)
    assert (logits.name, logits.contract.dimension) == ("model.logits", 2)
    assert set(teacher.contract.differences(logits.contract)) == {"output", "dimension", "modules"}
    head = head_of(folder)
    others = [
        replace(head, labels=("no", "maybe")),
        replace(head, weight=head.weight + np.float32(1e-3)),
        replace(head, bias=head.bias[::-1].copy()),
    ]
    assert len({logits_contract(teacher.contract, one).id for one in [head, *others]}) == 4
    scaled = load_teacher(folder, device="cpu", normalize=True, truncate_dim=8)
    assert logits_teacher(scaled).contract == logits.contract
    # The classifier is given vectors whole and unscaled.
    found = Encoder(logits_teacher(scaled), compute_dtype="float32").encode(TEXTS).vectors
    np.testing.assert_allclose(found, head.logits(encode_texts(teacher, TEXTS)), atol=1e-5)


def test_a_model_without_a_fitting_classifier_has_no_logits(file: Path, folder: Path, tmp_path: Path) -> None:
    bare = tiny_encoder(tmp_path / "bare")
    with pytest.raises(TeacherError, match="no classifier"):
        make(file, bare, tmp_path / "cache", output="logits")
    add_classifier(bare, width=8)
    with pytest.raises(TeacherError, match="8 dimensions"):
        make(file, bare, tmp_path / "cache", output="logits")
    assert not (tmp_path / "cache").exists()
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptCacheError, match="classifier"):
        make(file, folder, tmp_path / "cache", output="logits")
    assert len(make(file, folder, tmp_path / "cache").lookup(TEXTS)) == 40


def test_a_teacher_of_logits_is_loaded_by_its_contract(file: Path, folder: Path, tmp_path: Path) -> None:
    contract = logits_teacher(load_teacher(folder, device="cpu")).contract
    loaded = load_by_contract(folder, contract, name="model.logits", remedy="give it")
    assert (loaded.contract, loaded.name) == (contract, "model.logits")
    cache = make(file, folder, tmp_path / "cache", output="logits")
    np.testing.assert_allclose(encode_texts(loaded, TEXTS), cache.lookup(TEXTS, "model.logits"), atol=1e-5)
    for change in ({"seed": 1}, {"labels": ("no", "maybe")}):
        add_classifier(folder, **{"labels": LABELS, **change})
        with pytest.raises(ContractMismatchError, match="modules"):
            load_by_contract(folder, contract, name="model.logits", remedy="give it")
    (folder / CLASSIFIER).unlink()
    with pytest.raises(TeacherError, match="no classifier"):
        load_by_contract(folder, contract, name="model.logits", remedy="give it")
