"""Logits of a classifier beside the vectors of its encoder: one pass, two stores, two contracts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flat_build import build
from pair_helpers import LABELS, add_classifier, classifier_folder, joined, pair_file

from embedcache.cache import Cache
from embedcache.errors import ContractMismatchError, CorruptCacheError, StorageError, TeacherError
from embedcache.store import ShardStore
from embedcache.teacher.classifier import CLASSIFIER, WEIGHTS, ClassifierHead, logits_contract
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import load_by_contract, load_teacher, logits_teacher
from embedcache.testing import encode_texts, tiny_encoder

BOTH = "embedding,logits"
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


def counts(cache: Cache, *names: str) -> list[tuple[int, ...]]:
    assert cache.result is not None
    return [tuple(getattr(one, name) for name in names) for one in cache.result.outputs]


def shards(cache: Path) -> dict[str, bytes]:
    return {str(p.relative_to(cache)): p.read_bytes() for p in cache.glob("teachers/*/shards/*.arrow")}


def head_of(folder: Path) -> ClassifierHead:
    head = ClassifierHead.read(folder)
    assert head is not None
    return head


def test_one_pass_gives_both_outputs_and_only_missing_rows(file: Path, folder: Path, tmp_path: Path) -> None:
    cache = make(file, folder, tmp_path / "both", output=BOTH)
    assert cache.result is not None
    assert (cache.result.encoded, counts(cache, "encoded")) == (40, [(40,), (40,)])
    vectors, logits = cache.lookup(TEXTS, "model"), cache.lookup(TEXTS, "model.logits")
    np.testing.assert_allclose(logits, head_of(folder).logits(vectors), atol=1e-5)
    alone = make(file, folder, tmp_path / "alone")
    assert shards(alone.folder).items() <= shards(cache.folder).items()
    added = make(file, folder, tmp_path / "alone", output=BOTH)
    assert counts(added, "encoded", "cached") == [(0, 40), (40, 0)]
    assert shards(added.folder) == shards(cache.folder)
    only = make(file, folder, tmp_path / "only", output="logits")
    assert [one.name for one in only.teachers()] == ["model.logits"]
    assert np.array_equal(only.lookup(TEXTS), logits)


def test_a_build_of_both_that_was_stopped_goes_on_to_the_same_bytes(
    file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shards(make(file, folder, tmp_path / "whole", output=BOTH).folder)
    put, calls = ShardStore.put, []

    def stops(store: ShardStore, batch: object) -> None:
        if len(calls) == 3:
            raise StorageError("no room")
        calls.append(batch)
        put(store, batch)

    with monkeypatch.context() as patch:
        patch.setattr(ShardStore, "put", stops)
        with pytest.raises(StorageError):
            make(file, folder, tmp_path / "cache", output=BOTH)
    assert make(file, folder, tmp_path / "cache", output=BOTH).result.encoded == 32
    assert shards(tmp_path / "cache") == whole


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
    found = Encoder(scaled, logits_teacher(scaled), compute_dtype="float32").encode(TEXTS).vectors
    np.testing.assert_allclose(found[:, 8:], head.logits(encode_texts(teacher, TEXTS)), atol=1e-5)
    assert np.array_equal(found[:, :8], encode_texts(scaled, TEXTS))


def test_a_model_without_a_fitting_classifier_has_no_logits(file: Path, folder: Path, tmp_path: Path) -> None:
    bare = tiny_encoder(tmp_path / "bare")
    with pytest.raises(TeacherError, match="no classifier"):
        make(file, bare, tmp_path / "cache", output=BOTH)
    add_classifier(bare, width=8)
    with pytest.raises(TeacherError, match="8 dimensions"):
        make(file, bare, tmp_path / "cache", output="logits")
    assert not (tmp_path / "cache").exists()
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptCacheError, match="classifier"):
        make(file, folder, tmp_path / "cache", output=BOTH)
    assert len(make(file, folder, tmp_path / "cache").lookup(TEXTS)) == 40


def test_a_teacher_of_logits_is_loaded_by_its_contract(file: Path, folder: Path, tmp_path: Path) -> None:
    contract = logits_teacher(load_teacher(folder, device="cpu")).contract
    loaded = load_by_contract(folder, contract, name="model.logits", remedy="give it")
    assert (loaded.contract, loaded.name) == (contract, "model.logits")
    cache = make(file, folder, tmp_path / "cache", output=BOTH)
    np.testing.assert_allclose(encode_texts(loaded, TEXTS), cache.lookup(TEXTS, "model.logits"), atol=1e-5)
    for change in ({"seed": 1}, {"labels": ("no", "maybe")}):
        add_classifier(folder, **{"labels": LABELS, **change})
        with pytest.raises(ContractMismatchError, match="modules"):
            load_by_contract(folder, contract, name="model.logits", remedy="give it")
    (folder / CLASSIFIER).unlink()
    with pytest.raises(TeacherError, match="no classifier"):
        load_by_contract(folder, contract, name="model.logits", remedy="give it")
