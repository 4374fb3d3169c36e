"""A teacher that is named by its cache: what it encodes is stored there, so nothing is encoded twice."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from distill_helpers import TEXTS
from evaluation_helpers import letters_model, write_rows

from distill.errors import DataError
from distill.evaluation import evaluate, load_model
from distill.evaluation.cached_teacher import find_cached
from embedcache import fsio
from embedcache.cache import Cache
from embedcache.errors import EmbedCacheError, InputError
from embedcache.gc import collect_garbage
from embedcache.keys import key_array
from embedcache.repair import repair
from embedcache.teacher.encode import Encoder
from embedcache.verify import verify

pytest_plugins = ["distill_fixtures"]

HEADER = "subset | score | sentence1 | sentence2"
NEW = ("a text that no corpus has", "and another one")
ROWS = [f"a | {number % 5} | {TEXTS[number]} | {TEXTS[number + 7]}" for number in range(20)]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows(folder, "stsb_test", HEADER, *ROWS, f"a | 5 | {NEW[0]} | {NEW[1]}")
    return folder


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """Every text that any encoder was given."""
    seen: list[str] = []
    encode = Encoder.encode

    def recorded(self, texts):
        seen.extend(texts)
        return encode(self, texts)

    monkeypatch.setattr(Encoder, "encode", recorded)
    return seen


def measure(spec: str, data: Path, **settings):
    return evaluate(spec, data=data, device="cpu", bootstrap=0, **settings)


def test_only_what_is_missing_is_encoded_and_never_again(own_cache, data, encoded):
    spec = f"cache:{own_cache}#tiny"
    first = measure(spec, data)
    assert sorted(encoded) == sorted(NEW)
    assert any("2 encoded now and kept in" in note for note in first.notes)
    encoded.clear()
    again = measure(spec, data)
    assert encoded == []
    assert any("0 encoded now" in note for note in again.notes)
    assert again.models[0].to_json() == first.models[0].to_json()


def test_what_is_stored_is_what_a_build_would_store(own_cache, data, teacher):
    measure(f"cache:{own_cache}", data)
    cache = Cache(own_cache)
    store = cache.store(cache.teacher("tiny").contract)
    positions = store.locate(key_array(NEW))
    own = Encoder(teacher, compute_dtype="float32").encode(list(NEW))
    assert store.vectors(positions) == pytest.approx(own.vectors, abs=1e-6)
    tokens, truncated = store.seen(positions)
    assert tokens.tolist() == own.tokens.tolist()
    assert not truncated.any()
    shard = next(shard for shard in store.shards if len(shard) == len(NEW))
    assert shard.header.provenance["compute_dtype"] == "float32"
    # No corpus has come with it: commands that take the only corpus still find one.
    assert cache.corpus_names() == ["texts"]
    assert not verify(own_cache).damage


def test_figures_are_those_of_the_vectors_as_stored(data, teacher_folder, tmp_path, encoded):
    from distill_helpers import build

    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    build(corpus, teacher_folder, tmp_path / "coarse", codec="int8")
    first, again = (measure(f"cache:{tmp_path / 'coarse'}#tiny", data) for _ in range(2))
    assert again.models[0].to_json() == first.models[0].to_json()


def test_garbage_collection_takes_them_only_where_it_is_asked_to(own_cache, data, encoded):
    measure(f"cache:{own_cache}#tiny", data)
    cache = Cache(own_cache)
    contract = cache.teacher("tiny").contract
    assert not [one for one in collect_garbage(cache, hours=0) if one.path.endswith(".arrow")]
    assert (cache.store(contract).locate(key_array(NEW)) >= 0).all()
    taken = collect_garbage(cache, hours=0, unused=True)
    assert len([one for one in taken if one.path.endswith(".arrow")]) == 1
    store = Cache(own_cache).store(contract)
    assert (store.locate(key_array(NEW)) < 0).all()
    assert (store.locate(key_array(TEXTS)) >= 0).all()


def test_repair_says_what_it_has_no_text_for(own_cache, data, encoded, teacher_folder):
    before = set(own_cache.rglob("*.arrow"))
    measure(f"cache:{own_cache}#tiny", data)
    (shard,) = {path for path in set(own_cache.rglob("*.arrow")) - before if "shards" in path.parts}
    whole = bytearray(shard.read_bytes())
    whole[len(whole) // 2] ^= 0xFF
    shard.write_bytes(whole)
    (fix,) = repair(own_cache).fixes
    assert "no sound corpus has the texts" in fix.detail
    # It is moved aside, and the next evaluation encodes them again.
    assert not shard.exists()
    encoded.clear()
    measure(f"cache:{own_cache}#tiny", data)
    assert sorted(encoded) == sorted(NEW)


def test_a_cache_that_cannot_be_written_costs_a_note_only(own_cache, data, encoded, monkeypatch):
    before = {path: path.stat().st_mtime_ns for path in own_cache.rglob("*.arrow")}

    def refuse(step: str, path: Path) -> None:
        if own_cache in path.parents:
            raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(fsio, "on_write_step", refuse)
    result = measure(f"cache:{own_cache}#tiny", data)
    assert any("not kept in" in note and "read-only" in note for note in result.notes)
    assert {path: path.stat().st_mtime_ns for path in own_cache.rglob("*.arrow")} == before
    assert result.models[0].scores.headline is not None


def test_a_cache_that_is_merely_looked_into_is_not_written(own_cache, data, encoded, teacher_folder):
    names = sorted(path.name for path in own_cache.rglob("*.arrow"))
    model = letters_model()
    evaluate(model, teacher=str(teacher_folder), cache=own_cache, data=data, device="cpu", bootstrap=0)
    assert sorted(encoded) == sorted(NEW)
    assert sorted(path.name for path in own_cache.rglob("*.arrow")) == names


def test_it_can_be_the_teacher_that_others_stand_beside(own_cache, data, encoded):
    result = evaluate(
        letters_model(), teacher=f"cache:{own_cache}#tiny", data=data, device="cpu", bootstrap=0
    )
    assert [(report.role, report.name) for report in result.models] == [
        ("teacher", "tiny"),
        ("model", "student"),
    ]
    assert result.to_json()["teacher_vectors_encoded"] == 2
    assert result.models[0].parameters > 0
    with pytest.raises(DataError, match="leave out --cache"):
        evaluate(letters_model(), teacher=f"cache:{own_cache}#tiny", cache=own_cache, data=data)


def test_the_teacher_of_a_run_is_not_encoded_beside_itself(
    own_cache, data, encoded, tmp_path, teacher_folder
):
    cache = Cache(own_cache)
    entry = cache.teacher("tiny")
    run = tmp_path / "run"
    run.mkdir()
    (run / "best").symlink_to(teacher_folder)
    teacher = {"name": "tiny", "spec": str(teacher_folder), "contract_id": entry.contract.id}
    (run / "run.json").write_text(json.dumps({"teacher": teacher}), encoding="utf-8")
    result = evaluate([run, f"cache:{own_cache}#tiny"], data=data, device="cpu", bootstrap=0)
    assert [report.role for report in result.models] == ["teacher", "model"]
    # The student is the same model here, and encodes for itself.
    assert encoded.count(NEW[0]) == 2


@pytest.mark.parametrize("mark", ["", "#tiny", "#CONTRACT"])
def test_a_teacher_is_named_by_its_name_its_contract_or_not_at_all(own_cache, mark):
    contract = Cache(own_cache).teacher("tiny").contract
    folder, found = find_cached(f"cache:{own_cache}{mark.replace('CONTRACT', contract.id[:12])}")
    assert folder == own_cache
    assert (found.name, found.contract) == ("tiny", contract)


def test_a_folder_may_have_the_mark_in_its_name(own_cache):
    odd = own_cache.rename(own_cache.with_name("a#b"))
    assert find_cached(f"cache:{odd}")[1].name == "tiny"
    assert find_cached(f"cache:{odd}#tiny")[1].name == "tiny"


def test_what_is_not_there_is_refused(own_cache, two_teachers, data, tmp_path):
    with pytest.raises(InputError, match=r"no teacher 'other'.*tiny"):
        measure(f"cache:{own_cache}#other", data)
    with pytest.raises(InputError, match="several teachers"):
        measure(f"cache:{two_teachers}", data)
    with pytest.raises(EmbedCacheError, match="no cache at"):
        measure(f"cache:{tmp_path / 'nowhere'}#tiny", data)


def test_nothing_else_is_taken_for_a_cache(own_cache):
    assert find_cached("org/cache") is None
    assert find_cached(own_cache) is None
    assert load_model(model := letters_model()) is model
