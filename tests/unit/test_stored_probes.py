"""Probes: no vector is stored beside rows that the same teacher computes otherwise now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from teacher_folders import decoder, edit

from embedcache.building.build import build
from embedcache.cache import Cache
from embedcache.errors import ContractMismatchError, NonFiniteVectorError
from embedcache.fsio import list_folder
from embedcache.keys import key_array
from embedcache.probes import COUNT, Probes
from embedcache.store import VectorBatch
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import load_teacher
from embedcache.teacher.options import EncodeOptions, TeacherOptions
from embedcache.testing import FakeEncoder, fake_teacher, sentences

TEXTS = sentences(300)
MORE = sentences(20, seed=9)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return decoder(tmp_path / "decoder")


@pytest.fixture
def older(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """Return a cache whose rows were made by a library that forgot the last token."""
    teacher = load_teacher(folder, device="cpu")
    contract, file = teacher.contract, folder / "tokenizer.json"
    kept = file.read_bytes()
    edit(file, post_processor=None)
    patched = replace(load_teacher(folder, device="cpu"), contract=contract)
    monkeypatch.setattr(Encoder, "provenance", {"compute_dtype": "float32", "transformers": "4.57.1"})
    cache = build(TEXTS, teacher=patched, cache=tmp_path / "cache", name="x")
    monkeypatch.undo()
    file.write_bytes(kept)
    return cache


def shards_of(cache: Cache) -> list[str]:
    return list_folder(cache.teacher_folder(cache.teacher().contract) / "shards")


ADD: dict[str, Callable[[Cache, Path], object]] = {
    "build": lambda cache, teacher: build(MORE, teacher=teacher, cache=cache.folder, name="more"),
    "encode": lambda cache, teacher: cache.encode(MORE, teacher),
    "devices": lambda cache, teacher: build(
        MORE, teacher=teacher, cache=cache.folder, name="more", encode=EncodeOptions(devices="cpu,cpu")
    ),
}


@pytest.mark.parametrize("way", ADD)
def test_other_tokens_stop_the_build_and_both_versions_are_named(
    older: Cache, folder: Path, way: str
) -> None:
    before = shards_of(older)
    with pytest.raises(ContractMismatchError, match=r"tokens.*transformers 4\.57\.1 then, \d") as caught:
        ADD[way](older, folder)
    assert caught.value.differences.keys() == {"tokens"}
    assert shards_of(older) == before
    # What is stored can be read, and a build with nothing to do does not ask.
    assert older.lookup(TEXTS).shape == (300, 16)
    build(TEXTS, teacher=folder, cache=older.folder, name="x")


@pytest.mark.parametrize("codec", ["float32", "float16", "int8", "pq"])
def test_the_same_teacher_adds_in_any_codec_and_dtype(folder: Path, tmp_path: Path, codec: str) -> None:
    first = EncodeOptions(codec=codec, compute_dtype="float32", backend="torch")
    cache = build(TEXTS, teacher=folder, cache=tmp_path / "cache", name="x", encode=first)
    found = build(
        MORE, teacher=folder, cache=cache.folder, name="y", encode=EncodeOptions(compute_dtype="bfloat16")
    )
    assert found.result is not None
    assert found.result.encoded == len(MORE)


def turned(vectors: np.ndarray[Any, Any], angle: float) -> np.ndarray[Any, Any]:
    """Return vectors of length one, turned by an angle in radians."""
    aside = np.roll(vectors, 1, axis=1)
    aside = aside - (aside * vectors).sum(axis=1, keepdims=True) * vectors
    aside /= np.linalg.norm(aside, axis=1, keepdims=True)
    return np.float32(np.cos(angle) * vectors + np.sin(angle) * aside)


@pytest.mark.parametrize(
    ("dtype", "angle", "sound"),
    [("float32", 0.01, True), ("float32", 0.04, False), ("bfloat16", 0.06, True), ("bfloat16", 0.12, False)],
)
def test_vectors_may_move_by_the_noise_of_their_dtype(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, angle: float, sound: bool
) -> None:
    monkeypatch.setattr(FakeEncoder, "provenance", {"compute_dtype": dtype})
    cache = build(TEXTS, teacher=FakeEncoder(fake_teacher(64)), cache=tmp_path / "cache", name="x")
    now = FakeEncoder(fake_teacher(64))
    compute = now._vectors
    monkeypatch.setattr(now, "_vectors", lambda keys: turned(compute(keys), angle))
    if sound:
        cache.encode(MORE, now)
    else:
        with pytest.raises(ContractMismatchError, match="same libraries"):
            cache.encode(MORE, now)


def test_noise_is_measured_where_the_teacher_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = build(TEXTS, teacher=FakeEncoder(fake_teacher(64)), cache=tmp_path / "cache", name="x")
    now = FakeEncoder(fake_teacher(64))
    compute = now._vectors
    # One by one its vectors are elsewhere, as in many layers of bfloat16.
    monkeypatch.setattr(now, "_vectors", lambda keys: turned(compute(keys), 0.1 if len(keys) == 1 else 0.05))
    assert len(cache.encode(MORE, now)) == len(MORE)


def test_nan_for_a_stored_text_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = build(TEXTS, teacher=FakeEncoder(fake_teacher(8)), cache=tmp_path / "cache", name="x")
    now = FakeEncoder(fake_teacher(8))
    monkeypatch.setattr(now, "_vectors", lambda keys: np.full((len(keys), 8), np.nan, np.float32))
    with pytest.raises(NonFiniteVectorError, match="NaN"):
        cache.encode(MORE, now)


def test_probes_are_spread_from_the_shortest_to_the_longest(tmp_path: Path) -> None:
    texts = ["word " * (1 + row % 40) + str(row) for row in range(3000)]
    encoder = FakeEncoder(fake_teacher(8))
    cache = build(
        texts, teacher=encoder, cache=tmp_path / "cache", name="x", encode=EncodeOptions(shard_rows=500)
    )
    store = cache.store(cache.teacher().contract)
    probes = Probes.draw(store, cache.corpora())
    assert len(set(probes.texts)) == COUNT
    assert probes.tokens.min() <= 3
    assert probes.tokens.max() >= 39
    shards = store.shards_at(store.locate(key_array(probes.texts)))
    assert len(set(shards.tolist())) >= 3
    assert Probes.draw(store, []).texts == ()


@pytest.mark.parametrize("devices", [None, "cpu,cpu"])
def test_waiting_rows_are_probed(older: Cache, folder: Path, tmp_path: Path, devices: str | None) -> None:
    """Rows that ``Cache.encode`` keeps are compared once a call or a build has their texts."""
    contract = older.teacher().contract
    waiting = Cache.create(tmp_path / "waiting")
    vectors, keys = older.lookup(TEXTS[:50]), key_array(TEXTS[:50])
    tokens = older.store(contract).seen(older.store(contract).locate(keys))[0]
    provenance = {"compute_dtype": "float32", "transformers": "4.57.1"}
    waiting.register_teacher("decoder", contract, {})
    waiting.waiting(contract).add(VectorBatch(keys, vectors, tokens, tokens < 0, provenance))
    if devices is None:
        with pytest.raises(ContractMismatchError, match="tokens"):
            waiting.encode([*TEXTS[:3], *MORE], folder)
    with pytest.raises(ContractMismatchError, match="tokens"):
        build([*TEXTS, *MORE], teacher=folder, cache=waiting.folder, encode=EncodeOptions(devices=devices))


def test_a_teacher_under_another_name_is_still_probed(older: Cache, folder: Path) -> None:
    with pytest.raises(ContractMismatchError):
        build(MORE, teacher=TeacherOptions(folder, name="other"), cache=older.folder, name="more")
