"""Logits of a classifier beside the vectors of its encoder: one pass, two stores, two contracts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flat_build import build
from pair_helpers import LABELS, add_classifier, classifier_folder, joined, pair_file

from embedcache.cache import Cache
from embedcache.copying import CopyOptions, copy
from embedcache.errors import ContractMismatchError, CorruptCacheError, InputError, StorageError, TeacherError
from embedcache.explain import want
from embedcache.store import ShardStore
from embedcache.teacher.classifier import CLASSIFIER, WEIGHTS, ClassifierHead
from embedcache.teacher.encode import Encoder, encode_texts
from embedcache.teacher.load import load_by_contract, load_teacher, logits_teacher
from embedcache.teacher.outputs import logits_contract, parse_outputs
from embedcache.testing import sentences, tiny_encoder
from embedcache.verify import verify

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
    return build(
        file, teacher=teacher, cache=cache, text_column="premise", text2_column="hypothesis", **chosen
    )


def shards(cache: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(cache)): p.read_bytes() for p in sorted(cache.glob("teachers/*/shards/*.arrow"))
    }


def test_both_outputs_come_of_one_pass(file: Path, folder: Path, tmp_path: Path) -> None:
    cache = make(file, folder, tmp_path / "both", output=BOTH)
    summary = cache.result
    assert summary is not None
    assert summary.encoded == 40
    assert [(one.teacher, one.output, one.encoded) for one in summary.outputs] == [
        ("model", "embedding", 40),
        ("model.logits", "logits", 40),
    ]
    vectors, logits = cache.lookup(TEXTS, "model"), cache.lookup(TEXTS, "model.logits")
    head = ClassifierHead.read(folder)
    assert head is not None
    np.testing.assert_allclose(logits, vectors @ head.weight.T + head.bias, atol=1e-5)
    assert logits.shape == (40, 2)
    alone = make(file, folder, tmp_path / "alone")
    assert shards(alone.folder).items() <= shards(cache.folder).items()
    assert len(shards(cache.folder)) == 2 * len(shards(alone.folder)) == 10
    assert not verify(cache.folder).findings


def test_the_contract_of_logits_names_the_classifier(folder: Path) -> None:
    teacher = load_teacher(folder, device="cpu")
    logits = logits_teacher(teacher)
    assert logits.name == "model.logits"
    changed = teacher.contract.differences(logits.contract)
    assert set(changed) == {"output", "dimension", "modules"}
    assert (logits.contract.output, logits.contract.dimension) == ("logits", 2)
    head = ClassifierHead.read(folder)
    assert head is not None
    others = [
        replace(head, labels=("no", "maybe")),
        replace(head, weight=head.weight + np.float32(1e-3)),
        replace(head, bias=head.bias[::-1].copy()),
    ]
    ids = {logits_contract(teacher.contract, one).id for one in [head, *others]}
    assert len(ids) == 4
    scaled = load_teacher(folder, device="cpu", normalize=True, truncate_dim=8)
    assert scaled.contract != teacher.contract
    assert logits_teacher(scaled).contract == logits.contract


def test_a_classifier_is_given_vectors_whole_and_unscaled(folder: Path) -> None:
    plain = encode_texts(load_teacher(folder, device="cpu"), TEXTS)
    scaled = load_teacher(folder, device="cpu", normalize=True, truncate_dim=8)
    found = Encoder(scaled, compute_dtype="float32", also=logits_teacher(scaled)).encode(TEXTS).vectors
    head = ClassifierHead.read(folder)
    assert head is not None
    np.testing.assert_allclose(found[:, 8:], head.logits(plain), atol=1e-5)
    assert np.array_equal(found[:, :8], encode_texts(scaled, TEXTS))
    assert np.abs(found[:, :8] - plain[:, :8]).max() > 0.1


def test_what_is_there_is_not_encoded_again(file: Path, folder: Path, tmp_path: Path) -> None:
    make(file, folder, tmp_path / "cache")
    cache = make(file, folder, tmp_path / "cache", output=BOTH)
    summary = cache.result
    assert summary is not None
    assert summary.encoded == 40
    assert [(one.encoded, one.cached) for one in summary.outputs] == [(0, 40), (40, 0)]
    again = make(file, folder, tmp_path / "cache", output=BOTH).result
    assert again is not None
    assert again.encoded == 0
    assert shards(tmp_path / "cache") == shards(make(file, folder, tmp_path / "new", output=BOTH).folder)


@pytest.mark.parametrize("stored", [1, 2])
def test_a_build_that_was_stopped_goes_on_to_the_same_bytes(
    file: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored: int
) -> None:
    whole = shards(make(file, folder, tmp_path / "whole", output=BOTH).folder)
    put, calls = ShardStore.put, []

    def stops(store, batch):
        if len(calls) == stored:
            raise StorageError("no room")
        calls.append(batch)
        put(store, batch)

    monkeypatch.setattr(ShardStore, "put", stops)
    with pytest.raises(StorageError):
        make(file, folder, tmp_path / "cache", output=BOTH)
    assert len(shards(tmp_path / "cache")) == stored
    monkeypatch.undo()
    cache = make(file, folder, tmp_path / "cache", output=BOTH)
    assert shards(tmp_path / "cache") == whole
    assert cache.result is not None
    assert cache.result.encoded == 40 - 8 * (stored // 2)


def test_logits_alone(file: Path, folder: Path, tmp_path: Path) -> None:
    cache = make(file, folder, tmp_path / "cache", output="logits")
    assert [one.name for one in cache.teachers()] == ["model.logits"]
    both = make(file, folder, tmp_path / "both", output=BOTH)
    assert np.array_equal(cache.lookup(TEXTS), both.lookup(TEXTS, "model.logits"))


@pytest.mark.parametrize("codec", ["int8", "pq"])
def test_logits_stay_floats(file: Path, folder: Path, tmp_path: Path, codec: str) -> None:
    with pytest.raises(InputError, match=f"--codec {codec}: logits"):
        make(file, folder, tmp_path / "cache", output="logits", codec=codec)
    assert not (tmp_path / "cache").exists()


def test_logits_stay_floats_when_a_cache_is_converted(file: Path, folder: Path, tmp_path: Path) -> None:
    cache = make(file, folder, tmp_path / "cache", output=BOTH)
    copy([cache.folder], tmp_path / "new", CopyOptions(codec="int8"))
    new = Cache(tmp_path / "new")
    codecs = {one.name: new.store(one.contract).codec_name for one in new.teachers()}
    assert codecs == {"model": "int8", "model.logits": "float32"}


def test_a_model_without_a_classifier_has_no_logits(file: Path, tmp_path: Path) -> None:
    bare = tiny_encoder(tmp_path / "bare")
    with pytest.raises(TeacherError, match=r"has no classifier.*'distill teach'"):
        make(file, bare, tmp_path / "cache", output=BOTH)
    assert not (tmp_path / "cache").exists()
    add_classifier(bare, width=8)
    with pytest.raises(TeacherError, match="takes vectors of 8 dimensions, the model gives 16"):
        make(file, bare, tmp_path / "cache", output="logits")


def test_a_damaged_classifier_is_refused_and_the_encoder_is_not(
    file: Path, folder: Path, tmp_path: Path
) -> None:
    (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-1] + b"x")
    with pytest.raises(CorruptCacheError, match="classifier"):
        make(file, folder, tmp_path / "cache", output=BOTH)
    assert len(make(file, folder, tmp_path / "cache").lookup(TEXTS)) == 40


@pytest.mark.parametrize("output", ["", "vectors", "logits,logits", "embedding;logits"])
def test_other_outputs_are_refused(output: str) -> None:
    with pytest.raises(InputError, match="expected embedding, logits, or both"):
        parse_outputs(output)
    assert parse_outputs(" logits, embedding") == ("embedding", "logits")


def test_a_teacher_of_logits_is_loaded_by_its_contract(folder: Path, tmp_path: Path) -> None:
    contract = logits_teacher(load_teacher(folder, device="cpu")).contract
    loaded = load_by_contract(folder, contract, name="model.logits", remedy="give it")
    assert (loaded.contract, loaded.name) == (contract, "model.logits")
    texts = sentences(5)
    head = ClassifierHead.read(folder)
    assert head is not None
    plain = encode_texts(load_teacher(folder, device="cpu"), texts)
    np.testing.assert_allclose(encode_texts(loaded, texts), head.logits(plain), atol=1e-5)
    for change in ({"seed": 1}, {"labels": ("no", "maybe")}):
        add_classifier(folder, **{"labels": LABELS, **change})
        with pytest.raises(ContractMismatchError, match="modules"):
            load_by_contract(folder, contract, name="model.logits", remedy="give it")
    (folder / CLASSIFIER).unlink()
    with pytest.raises(TeacherError, match="no classifier"):
        load_by_contract(folder, contract, name="model.logits", remedy="give it")


def test_an_encoder_of_other_outputs_is_refused(file: Path, folder: Path, tmp_path: Path) -> None:
    teacher = load_teacher(folder, device="cpu")
    one = Encoder(teacher, compute_dtype="float32")
    both = Encoder(teacher, compute_dtype="float32", also=logits_teacher(teacher))
    for encoder, output in ((one, BOTH), (both, "embedding")):
        with pytest.raises(InputError, match="the encoder gives"):
            make(file, teacher, tmp_path / "cache", output=output, encoder=encoder)
    cache = make(file, teacher, tmp_path / "cache", output=BOTH, encoder=both)
    assert len(cache.teachers()) == 2


def test_rows_of_another_length_are_carried_over_for_both(file: Path, folder: Path, tmp_path: Path) -> None:
    make(file, folder, tmp_path / "cache", output=BOTH, teacher_name="long")
    cache = make(file, folder, tmp_path / "cache", output=BOTH, max_length=60, teacher_name="short")
    summary = cache.result
    assert summary is not None
    assert summary.encoded == 0
    assert [(one.teacher, one.reused) for one in summary.outputs] == [("short", 40), ("short.logits", 40)]


def test_explain_loads_the_classifier_of_logits(file: Path, folder: Path, tmp_path: Path) -> None:
    cache = make(file, folder, tmp_path / "cache", output=BOTH)
    logits = cache.teacher("model.logits").contract
    loaded = want(cache, "model.logits", load=True)
    assert loaded.loaded
    assert loaded.contract == logits
    changed = want(cache, "model.logits", max_length=9)
    assert changed.contract == replace(logits, max_length=9)
