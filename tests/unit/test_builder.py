"""Building: only what is missing is encoded, and a build that was killed ends as if it had not been."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import embedcache
from embedcache.builder import BuildProgress, BuildSummary
from embedcache.cache import Cache
from embedcache.errors import (
    ContractMismatchError,
    InputError,
    MissingInputError,
    NonFiniteVectorError,
    StorageError,
    TeacherError,
)
from embedcache.fsio import sha256_file
from embedcache.store import ShardStore
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.testing import sentences

TEXTS = sentences(50)
MANY = sentences(300)


def corpus_file(folder: Path, texts: list[str] = TEXTS, name: str = "corpus.txt") -> Path:
    path = folder / name
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


@pytest.fixture
def build(tmp_path: Path, loaded_teacher: Teacher) -> Callable[..., Cache]:
    """Return ``embedcache.build``, by default with the tiny teacher in float32 and ``tmp_path/cache``."""

    def run(source: Any, **settings: Any) -> Cache:
        settings = {"teacher": loaded_teacher, "cache": tmp_path / "cache", **settings}
        return embedcache.build(source, **{"compute_dtype": "float32", **settings})

    return run


def summary(cache: Cache) -> BuildSummary:
    assert cache.last_build is not None
    return cache.last_build


def shard_names(cache: Path | Cache) -> list[str]:
    folder = cache.folder if isinstance(cache, Cache) else cache
    return sorted(path.name for path in folder.glob("teachers/*/shards/*"))


def test_the_first_run_encodes_and_the_second_does_not(
    tmp_path: Path, build: Callable[..., Cache], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = corpus_file(tmp_path)
    first = build(source)
    assert (summary(first).rows, summary(first).distinct) == (50, 50)
    assert (summary(first).encoded, summary(first).reused) == (50, 0)
    assert summary(first).bytes_written == first.store(first.teacher().contract).bytes_on_disk > 0
    names = shard_names(first)

    def never(*arguments: object) -> None:
        raise AssertionError("a text was encoded again")

    monkeypatch.setattr(Encoder, "forward", never)
    second = build(source)
    assert (summary(second).encoded, summary(second).reused, summary(second).bytes_written) == (0, 50, 0)
    assert shard_names(second) == names


@pytest.mark.parametrize(("codec", "tolerance"), [("float32", 1e-5), ("float16", 1e-3)])
def test_stored_vectors_are_those_of_sentence_transformers(
    tmp_path: Path, build: Callable[..., Cache], loaded_teacher: Teacher, codec: str, tolerance: float
) -> None:
    cache = build(corpus_file(tmp_path), codec=codec, shard_rows=7)
    expected = loaded_teacher.model.encode(TEXTS)
    np.testing.assert_allclose(cache.lookup(TEXTS), expected, atol=tolerance)
    np.testing.assert_allclose(cache.lookup(TEXTS[::-3]), expected[::-3], atol=tolerance)
    assert cache.store(loaded_teacher.contract).codec_name == codec


def test_duplicates_are_encoded_once(tmp_path: Path, build: Callable[..., Cache]) -> None:
    cache = build(corpus_file(tmp_path, [*TEXTS, *TEXTS[:20], TEXTS[0]]))
    assert (summary(cache).rows, summary(cache).distinct, summary(cache).encoded) == (71, 50, 50)
    assert cache.corpus().texts()[50:] == [*TEXTS[:20], TEXTS[0]]
    assert len(cache.store(cache.teacher().contract)) == 50


def test_an_overlapping_corpus_reuses_what_is_there(tmp_path: Path, build: Callable[..., Cache]) -> None:
    build(corpus_file(tmp_path, TEXTS[:30], "one.txt"))
    cache = build(corpus_file(tmp_path, TEXTS[20:], "two.txt"))
    assert (summary(cache).encoded, summary(cache).reused) == (20, 10)
    assert [corpus.name for corpus in cache.corpora()] == ["one", "two"]
    assert cache.lookup(TEXTS).shape == (50, 16)


def test_shards_hold_so_many_rows(tmp_path: Path, build: Callable[..., Cache]) -> None:
    cache = build(corpus_file(tmp_path), shard_rows=16)
    sizes = sorted(len(shard.keys) for shard in cache.store(cache.teacher().contract).shards)
    assert sizes == [2, 16, 16, 16]


def test_ids_labels_and_skipped_rows_are_kept(tmp_path: Path, build: Callable[..., Cache]) -> None:
    rows = [{"id": f"r{i}", "text": text, "label": i % 2} for i, text in enumerate(TEXTS)]
    source = tmp_path / "corpus.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"id": "x", "text": "", "label": 1}]))
    cache = build(source, text_column="text", id_column="id", label_column="label", name="named")
    corpus = cache.corpus("named")
    assert corpus.labels() == [i % 2 for i in range(50)]
    assert corpus.info.has_ids
    assert summary(cache).skipped == corpus.info.skipped == {"empty": 1}
    limited = build(source, text_column="text", limit=3, name="limited")
    assert (len(limited.corpus("limited")), summary(limited).encoded) == (3, 0)


def test_truncated_texts_are_counted(tmp_path: Path, build: Callable[..., Cache]) -> None:
    cache = build(corpus_file(tmp_path, [*TEXTS, "bird " * 62, "bird " * 63, "cat " * 99]))
    assert summary(cache).truncated == 2
    (shard,) = cache.store(cache.teacher().contract).shards
    assert shard.truncated.sum() == 2
    assert shard.tokens.max() == 64
    assert summary(cache).tokens == shard.tokens.sum()


def poisoned(folder: Path, word: str) -> Teacher:
    """Return the tiny teacher, giving NaN for every text with ``word`` in it."""
    teacher = load_teacher(folder, device="cpu")
    row = teacher.model[0].tokenizer.convert_tokens_to_ids(word)
    with torch.no_grad():
        teacher.model[0].model.embeddings.word_embeddings.weight[row] = float("nan")
    return teacher


def test_a_vector_that_is_not_finite_names_its_row_and_stores_nothing_of_its_shard(
    tmp_path: Path, build: Callable[..., Cache], tiny_teacher: Path
) -> None:
    clean = [text for text in TEXTS if "bird" not in text][:24]
    source = corpus_file(tmp_path, [*clean[:13], "a bird sings", *clean[13:], "a bird sleeps"])
    with pytest.raises(
        NonFiniteVectorError, match=r"row 13 of corpus 'corpus' \('a bird sings'\) and 0 more"
    ) as e:
        build(source, teacher=poisoned(tiny_teacher, "bird"), shard_rows=5)
    assert e.value.exit_code == 1
    cache = Cache(tmp_path / "cache")
    assert len(shard_names(cache)) == 2
    assert cache.lookup(clean[:10]).shape == (10, 16)
    store = cache.store(cache.teacher().contract)
    assert len(store) == 10
    assert np.isfinite(store.gather(np.arange(10))).all()


def failing_put(monkeypatch: pytest.MonkeyPatch, after: int, error: BaseException) -> None:
    put, calls = ShardStore.put, []

    def counted(store: ShardStore, batch: Any) -> None:
        calls.append(batch)
        if len(calls) > after:
            raise error
        put(store, batch)

    monkeypatch.setattr(ShardStore, "put", counted)


@pytest.mark.parametrize("after", [0, 1, 3])
@pytest.mark.parametrize(
    "error", [StorageError("the disk is full"), KeyboardInterrupt()], ids=["disk", "ctrl-c"]
)
def test_a_build_that_was_stopped_ends_with_the_same_files(
    tmp_path: Path,
    build: Callable[..., Cache],
    monkeypatch: pytest.MonkeyPatch,
    after: int,
    error: BaseException,
) -> None:
    source = corpus_file(tmp_path, [*TEXTS, *TEXTS[:9]])
    undisturbed = build(source, cache=tmp_path / "other", shard_rows=12)
    with monkeypatch.context() as patch:
        failing_put(patch, after, error)
        with pytest.raises(type(error)):
            build(source, shard_rows=12)
    assert len(shard_names(tmp_path / "cache")) == after
    resumed = build(source, shard_rows=12)
    assert (summary(resumed).encoded, summary(resumed).reused) == (50 - 12 * after, 12 * after)
    assert shard_names(resumed) == shard_names(undisturbed)
    for path in resumed.folder.rglob("shards/*"):
        assert sha256_file(path) == path.stem
    for path in resumed.folder.rglob("corpora/*/*"):
        assert path.read_bytes() == (undisturbed.folder / path.relative_to(resumed.folder)).read_bytes()


def test_ctrl_c_in_the_forward_pass_loses_nothing_that_was_stored(
    tmp_path: Path, build: Callable[..., Cache]
) -> None:
    source = corpus_file(tmp_path)
    undisturbed = build(source, cache=tmp_path / "other", shard_rows=12)

    def interrupt(progress: BuildProgress) -> None:
        if progress.phase == "encode" and shard_names(tmp_path / "cache"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(source, shard_rows=12, on_progress=interrupt)
    assert 0 < len(shard_names(tmp_path / "cache")) < 5
    assert shard_names(build(source, shard_rows=12)) == shard_names(undisturbed)


def test_ctrl_c_while_reading_leaves_no_half_corpus(tmp_path: Path, build: Callable[..., Cache]) -> None:
    def interrupt(progress: BuildProgress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build(corpus_file(tmp_path), on_progress=interrupt)
    cache = Cache(tmp_path / "cache")
    assert cache.corpora() == []
    assert not list(cache.folder.glob("corpora/.*"))
    assert summary(build(corpus_file(tmp_path))).encoded == 50


def test_progress_tells_both_phases(tmp_path: Path, build: Callable[..., Cache]) -> None:
    seen: list[tuple[str, int, int]] = []
    build(corpus_file(tmp_path), shard_rows=20, on_progress=lambda p: seen.append((p.phase, p.rows, p.total)))
    assert seen[0] == ("read", 50, 0)
    assert seen[-1] == ("encode", 50, 50)
    rows = [rows for phase, rows, _ in seen if phase == "encode"]
    assert rows == sorted(rows)


def test_the_summary_is_json(tmp_path: Path, build: Callable[..., Cache], loaded_teacher: Teacher) -> None:
    found = json.loads(json.dumps(summary(build(corpus_file(tmp_path))).to_json()))
    assert found["corpus"] == "corpus"
    assert found["teacher"] == "tiny"
    assert found["contract_id"] == loaded_teacher.contract.id
    assert set(found["busy"]) == {"read", "tokenise", "encode", "write"}
    assert all(seconds > 0 for seconds in found["busy"].values())


def test_a_changed_pooling_under_the_same_name_is_refused(
    tmp_path: Path, build: Callable[..., Cache], plain_teacher: Path
) -> None:
    source = corpus_file(tmp_path)
    build(source, teacher=plain_teacher, pooling="mean")
    names = shard_names(tmp_path / "cache")
    with pytest.raises(
        ContractMismatchError, match=r"'plain' with another contract \(pooling 'mean' -> 'cls'\)"
    ) as e:
        build(source, teacher=plain_teacher, pooling="cls")
    assert e.value.differences == {"pooling": ("mean", "cls")}
    assert shard_names(tmp_path / "cache") == names

    both = build(source, teacher=plain_teacher, pooling="cls", teacher_name="plain-cls")
    assert (summary(both).encoded, len(both.teachers())) == (50, 2)
    assert not np.allclose(both.lookup(TEXTS, "plain"), both.lookup(TEXTS, "plain-cls"), atol=0.1)


def test_a_refused_build_leaves_no_teacher_behind(
    tmp_path: Path, build: Callable[..., Cache], plain_teacher: Path
) -> None:
    build(corpus_file(tmp_path, TEXTS[:9], "one.txt"), name="same")
    with pytest.raises(InputError, match="another corpus called 'same'"):
        build(corpus_file(tmp_path), name="same", teacher=plain_teacher, pooling="cls")
    assert [teacher.name for teacher in Cache(tmp_path / "cache").teachers()] == ["tiny"]


def test_too_few_rows_for_pq_are_refused_before_the_corpus_is_written(
    tmp_path: Path, build: Callable[..., Cache], plain_teacher: Path
) -> None:
    few, many = corpus_file(tmp_path), corpus_file(tmp_path, MANY, "many.txt")
    again = corpus_file(tmp_path, [*MANY[:255], *MANY[:255]], "again.txt")

    def refused(folder: str, source: Path, found: int, **settings: Any) -> None:
        with pytest.raises(InputError, match=f"at least 256 vectors, found {found}:"):
            build(source, codec="pq", cache=tmp_path / folder, **settings)

    refused("new", few, 50)
    refused("new", again, 255)
    refused("new", many, 255, shard_rows=255)
    assert not (tmp_path / "new").exists()
    build(corpus_file(tmp_path, TEXTS[:9], "one.txt"), teacher=plain_teacher, pooling="cls")
    refused("cache", few, 50)
    refused("cache", again, 255)
    refused("cache", many, 255, shard_rows=255)
    cache = Cache(tmp_path / "cache")
    assert (cache.corpus_names(), [teacher.name for teacher in cache.teachers()]) == (["one"], ["plain"])
    done = build(many, codec="pq", shard_rows=256)
    assert (summary(done).encoded, summary(done).skipped) == (len(MANY), {})
    # There is a codebook now.
    others = corpus_file(tmp_path, [f"no {text}" for text in TEXTS], "others.txt")
    assert summary(build(others, codec="pq")).encoded == 50


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.parquet", b"no Parquet at all", "parquet"),
        ("empty.txt", b"", "empty"),
        ("blank.txt", b"\n\n", "every row was skipped"),
        ("no-column.csv", b"left,right\na,b\n", "column"),
    ],
)
def test_a_source_that_cannot_be_read_leaves_no_new_cache(
    tmp_path: Path, build: Callable[..., Cache], name: str, content: bytes, told: str
) -> None:
    source = tmp_path / name
    source.write_bytes(content)
    with pytest.raises(InputError, match=f"(?i){told}"):
        build(source)
    assert not (tmp_path / "cache").exists()
    good = corpus_file(tmp_path)
    build(good)
    before = sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    with pytest.raises(InputError, match=f"(?i){told}"):
        build(source)
    assert sorted(path for path in (tmp_path / "cache").rglob("*") if path.is_file()) == before


def test_the_codec_of_a_teacher_stays_what_it_was(tmp_path: Path, build: Callable[..., Cache]) -> None:
    build(corpus_file(tmp_path, TEXTS[:9], "one.txt"), codec="float32")
    source = corpus_file(tmp_path)
    with pytest.raises(InputError, match="as float32, not as float16: leave --codec out"):
        build(source, codec="float16")
    assert [corpus.name for corpus in Cache(tmp_path / "cache").corpora()] == ["one"]
    cache = build(source)
    assert {shard.codec.name for shard in cache.store(cache.teacher().contract).shards} == {"float32"}


def test_standard_input_is_a_corpus(
    tmp_path: Path, build: Callable[..., Cache], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = "".join(f"{text}\n" for text in TEXTS[:5]).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data))))
    cache = build("-")
    assert cache.corpus().name == "stdin"
    assert cache.corpus().texts() == TEXTS[:5]


def test_several_files_are_one_corpus(tmp_path: Path, build: Callable[..., Cache]) -> None:
    for name in "ba":
        corpus_file(tmp_path, [f"the cat {name}"], f"part-{name}.txt")
    cache = build(str(tmp_path / "part-*.txt"))
    assert cache.corpus("part-a").texts() == ["the cat a", "the cat b"]
    with pytest.raises(MissingInputError):
        build([tmp_path / "part-a.txt", tmp_path / "none.txt"])


def test_another_corpus_of_the_same_name_needs_replace(tmp_path: Path, build: Callable[..., Cache]) -> None:
    build(corpus_file(tmp_path, TEXTS[:10]))
    source = corpus_file(tmp_path, TEXTS[5:20])
    with pytest.raises(InputError, match="--overwrite"):
        build(source)
    cache = build(source, replace=True)
    assert cache.corpus().texts() == TEXTS[5:20]
    assert (summary(cache).encoded, summary(cache).reused) == (10, 5)
    assert cache.lookup(TEXTS[:5]).shape == (5, 16)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"codec": "int4"}, InputError, "unknown codec"),
        ({"shard_rows": 0}, InputError, "--shard-rows 0: expected at least 1"),
        ({"threads": 0}, InputError, "--threads 0"),
        ({"batch_tokens": 0}, InputError, "--batch-tokens 0"),
        ({"compute_dtype": "float16"}, InputError, "needs a GPU"),
        ({"name": "../up"}, InputError, "cannot name a corpus"),
        ({"teacher": "no-such-teacher"}, TeacherError, "no teacher 'no-such-teacher'"),
        ({"source": "none.txt"}, MissingInputError, r"none\.txt does not exist"),
        ({"format": "parquet"}, InputError, "(?i)parquet"),
        ({"pooling": "cls"}, InputError, "pooling cannot be changed on a teacher that is already loaded"),
        ({"teacher_name": "x", "prompt": ""}, InputError, "prompt, teacher_name cannot be changed"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path,
    build: Callable[..., Cache],
    settings: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    source = corpus_file(tmp_path)
    with pytest.raises(error, match=message):
        build(settings.pop("source", source), **settings)
    assert not (tmp_path / "cache").exists()


def test_an_encoder_serves_several_builds_of_its_own_teacher_only(
    tmp_path: Path, build: Callable[..., Cache], loaded_teacher: Teacher, tiny_teacher: Path
) -> None:
    encoder = Encoder(loaded_teacher, compute_dtype="float32")
    for name, texts in (("one.txt", TEXTS[:20]), ("two.txt", TEXTS[20:])):
        done = summary(build(corpus_file(tmp_path, texts, name), encoder=encoder))
        assert done.encoded == len(texts)
        assert done.tokens == encoder.encode(texts).tokens.sum()
    with pytest.raises(InputError, match=r"made of another teacher than 'tiny' \(max_length 64 -> 8\)"):
        build(
            tmp_path / "one.txt",
            encoder=encoder,
            teacher=load_teacher(tiny_teacher, max_length=8, device="cpu"),
        )


def test_nothing_that_is_shared_tells_where_things_lay(
    tmp_path: Path, build: Callable[..., Cache], tiny_teacher: Path
) -> None:
    cache = build(corpus_file(tmp_path), teacher=str(tiny_teacher))
    shared = [path for path in cache.folder.rglob("*") if path.is_file() and "derived" not in path.parts]
    assert len(shared) == 6
    for path in shared:
        assert str(tmp_path).encode() not in path.read_bytes()
        assert str(tiny_teacher.parent).encode() not in path.read_bytes()
    assert cache.teacher().origin == {"spec": "tiny"}
    assert cache.model_source(cache.teacher()) == str(tiny_teacher)
