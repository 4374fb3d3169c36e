"""Building: each text is encoded once, and impossible builds are refused before anything is written."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import flat_build
import numpy as np
import pytest
import torch
from pydantic_core import to_json

import embedcache
from embedcache.building.result import BuildResult
from embedcache.cache import Cache
from embedcache.errors import (
    CacheFormatError,
    ContractMismatchError,
    InputError,
    MissingInputError,
    MissingVectorsError,
    NonFiniteVectorError,
    TeacherError,
)
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.keys import key_array
from embedcache.store import ShardStore
from embedcache.teacher.batching import EncodedTexts
from embedcache.teacher.encode import Encoder
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.testing import FakeEncoder, fake_teacher, sentences

TEXTS = sentences(50)
Build = Callable[..., Cache]


def corpus_file(folder: Path, texts: list[str] = TEXTS, name: str = "corpus.txt") -> Path:
    path = folder / name
    path.write_text("".join(f"{text}\n" for text in texts))
    os.utime(path, (1e9, 1e9))
    return path


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Return a build of ``TEXTS`` by a fake teacher into ``tmp_path/cache``, unless given otherwise."""
    encoder = FakeEncoder(fake_teacher(16))

    def run(source: Any = None, **settings: Any) -> Cache:
        settings = {"teacher": encoder, "cache": tmp_path / "cache", **settings}
        source = corpus_file(tmp_path) if source is None else source
        return flat_build.build(source, **{"compute_dtype": "float32", "threads": 1, **settings})

    return run


def result(cache: Cache) -> BuildResult:
    assert cache.result is not None
    return cache.result


def counts(cache: Cache) -> tuple[int, int]:
    return (result(cache).encoded, result(cache).cached)


def outcomes(cache: Cache) -> dict[str, str]:
    return {view.name: view.outcome for view in result(cache).views}


def files(cache: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(cache)): path.read_bytes()
        for path in cache.rglob("*")
        if path.is_file() and "derived" not in path.parts
    }


# What is encoded


def test_a_build_reports_its_rows_and_the_same_again_encodes_nothing(
    tmp_path: Path, build: Build, loaded_teacher: Teacher, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"id": f"r{n}", "text": text, "label": n % 2} for n, text in enumerate(TEXTS)]
    rows += [{"id": "x", "text": "", "label": 1}, {"id": "y", "text": "bird " * 99, "label": 1}]
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = {"text_column": "text", "id_column": "id", "label_column": "label"}
    cache = build(source, teacher=loaded_teacher, name="named", **columns)
    done, store = json.loads(to_json(result(cache))), cache.store(loaded_teacher.contract)
    assert (done["corpus"], done["contract_id"]) == ("named", loaded_teacher.contract.id)
    assert (done["rows"], done["distinct"], done["encoded"]) == (51, 51, 51)
    assert (done["column"], done["example"]) == ("text", TEXTS[0])
    assert (done["skipped"], done["truncated"]) == ({"empty": 1}, 1)
    assert "rows.jsonl:51" in done["first_skipped"]["empty"]
    assert done["tokens"] == store.shards[0].tokens.sum()
    assert result(cache).bytes_written == store.bytes_on_disk > 0
    assert cache.corpus("named").labels()[:3] == [0, 1, 0]
    before = files(cache.folder)
    monkeypatch.setattr(Encoder, "forward", None)
    again = build(source, teacher=loaded_teacher, name="named", **columns)
    assert (*counts(again), result(again).bytes_written) == (0, 51, 0)
    assert files(cache.folder) == before


def test_a_text_is_encoded_once_in_one_corpus_or_several(tmp_path: Path, build: Build) -> None:
    cache = build(corpus_file(tmp_path, [*TEXTS[:30], *TEXTS[:20]], "one.txt"), shard_rows=16)
    assert (result(cache).rows, result(cache).distinct, result(cache).encoded) == (50, 30, 30)
    assert sorted(map(len, cache.store(cache.teacher().contract).shards)) == [14, 16]
    cache = build(corpus_file(tmp_path, TEXTS[20:], "two.txt"))
    assert counts(cache) == (20, 10)
    assert cache.corpus_names() == ["one", "two"]
    assert cache.lookup(TEXTS).shape == (50, 16)


def test_another_build_is_named_and_what_it_has_stored_is_not_encoded_again(
    tmp_path: Path, build: Build, caplog: pytest.LogCaptureFixture
) -> None:
    """While the first build encodes its first shard, another build stores rows of later shards."""
    source, teacher = corpus_file(tmp_path), fake_teacher(16)
    beside: list[BuildResult] = []

    class Slow(FakeEncoder):
        def encode(self, texts: Sequence[str]) -> EncodedTexts:
            if not beside:
                some = corpus_file(tmp_path, [*TEXTS[20:27], *TEXTS[40:]], "some.txt")
                beside.append(result(build(some, teacher=FakeEncoder(teacher), shard_rows=10)))
            return super().encode(texts)

    first = result(build(source, teacher=Slow(teacher), shard_rows=10))
    assert first.beside == ""
    assert beside[0].beside == f"host {socket.gethostname()}, process {os.getpid()}"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert beside[0].beside in caplog.text
    assert (beside[0].encoded, first.encoded) == (17, 33)
    assert Cache(tmp_path / "cache").lookup(TEXTS).shape == (50, 16)
    # The lock goes with its process.
    assert result(build(source, shard_rows=10)).beside == ""


def test_a_codebook_fits_a_sorted_corpus_as_well_as_a_shuffled_one(tmp_path: Path, build: Build) -> None:
    class Topics(FakeEncoder):
        """Vectors of one topic, the first word of a text, lie side by side."""

        def encode(self, texts: Sequence[str]) -> EncodedTexts:
            encoded = super().encode(texts)
            centres = self._vectors(key_array([text.split()[0] for text in texts]))
            return encoded._replace(vectors=centres + 0.3 * encoded.vectors)

    texts = [f"topic-{n // 50} text {n}" for n in range(3000)]
    exact = Topics(fake_teacher(16)).encode(texts).vectors
    cosines = []
    for name, order in (
        ("sorted", np.arange(3000)),
        ("shuffled", np.random.default_rng(0).permutation(3000)),
    ):
        source = corpus_file(tmp_path, [texts[row] for row in order], f"{name}.txt")
        settings = {"teacher": Topics(fake_teacher(16)), "codec": "pq", "shard_rows": 512}
        cache = build(source, cache=tmp_path / name, **settings)
        assert sorted(map(len, cache.store(cache.teacher().contract).shards)) == [440, *[512] * 5]
        assert result(build(source, cache=tmp_path / name, **settings)).encoded == 0
        found = cache.lookup(texts)
        lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(exact, axis=1)
        cosines.append(float(((found * exact).sum(axis=1) / lengths).mean()))
    assert cosines[0] == pytest.approx(cosines[1], abs=0.01)
    assert cosines[0] > 0.95


def test_other_rows_under_the_same_name_need_overwrite(tmp_path: Path, build: Build) -> None:
    build(corpus_file(tmp_path, TEXTS[:10]), views=["crop", "delete-words"])
    source = corpus_file(tmp_path, TEXTS[5:20])
    with pytest.raises(InputError, match="overwrite"):
        build(source, teacher=FakeEncoder(fake_teacher(16, name="other", seed=1)))
    assert [one.name for one in Cache(tmp_path / "cache").teachers()] == ["fake"]
    cache = build(source, views=["crop"], overwrite=True)
    assert cache.corpus().texts() == TEXTS[5:20]
    assert counts(cache) == (10, 5)
    assert cache.lookup(TEXTS[:5]).shape == (5, 16)
    assert outcomes(cache) == {"crop": "made"}
    assert len(cache.corpus().view("crop")) == 15


def test_pq_needs_256_rows(tmp_path: Path, build: Build) -> None:
    texts = sentences(300)
    again = corpus_file(tmp_path, [*texts[:255], *texts[:255]], "again.txt")
    many = corpus_file(tmp_path, texts, "many.txt")
    for source, settings in ((again, {}), (many, {"shard_rows": 255})):
        with pytest.raises(InputError, match="256"):
            build(source, codec="pq", **settings)
    assert Cache(tmp_path / "cache").teachers() == []
    assert counts(build(many, codec="pq", shard_rows=256)) == (300, 0)
    others = corpus_file(tmp_path, [f"no {text}" for text in TEXTS], "others.txt")
    assert counts(build(others, codec="pq")) == (50, 0)  # by the codebook there is


def test_codec_and_store_do_not_change(tmp_path: Path, build: Build) -> None:
    build(corpus_file(tmp_path, TEXTS[:9], "one.txt"), codec="float32", store="lmdb")
    for other in ({"codec": "float16"}, {"store": "arrow"}):
        with pytest.raises(InputError):
            build(**other)
    assert Cache(tmp_path / "cache").corpus_names() == ["one"]
    store = build().store(Cache(tmp_path / "cache").teacher().contract)
    assert (store.codec_name, store.kind, len(store)) == ("float32", "lmdb", 50)


@pytest.mark.parametrize("codec", ["float16", "pq"])
def test_two_builds_at_once_share_the_work_and_write_the_same_shards(
    tmp_path: Path, build: Build, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    texts = sentences(256 * 12)
    source, put, nested = corpus_file(tmp_path, texts), ShardStore.put, []

    def run(cache: str) -> Cache:
        return build(source, cache=tmp_path / cache, codec=codec, shard_rows=256)

    def build_beside(store: ShardStore, batch: Any) -> None:
        put(store, batch)
        if not nested:
            nested.append(None)
            nested.append(run("shared"))

    run("alone")
    monkeypatch.setattr(ShardStore, "put", build_beside)
    first = run("shared")
    assert result(first).encoded == 256
    assert nested[1] is not None
    assert result(nested[1]).encoded == len(texts) - 256
    assert files(tmp_path / "shared") == files(tmp_path / "alone")


class Watch:
    """Progress that is written down, and that may stop a build."""

    def __init__(self, stop_at: str = "") -> None:
        self.phases: dict[str, int] = {}
        self.text, self._stop_at = "", stop_at

    def phase(self, name: str, total: int | None = None, unit: str = "rows") -> None:
        self._name = name
        self.phases[name] = 0

    def advance(self, count: int = 1) -> None:
        self.phases[self._name] += count
        if self._name == self._stop_at and count:
            raise KeyboardInterrupt

    def skip(self, count: int) -> None:
        self.phases[self._name] += count

    def note(self, text: str) -> None:
        self.text = text


def test_progress_counts_each_phase_and_ctrl_c_in_one_loses_nothing(tmp_path: Path, build: Build) -> None:
    watch, settings = Watch(), {"shard_rows": 12, "views": ["crop"], "embed_views": ["crop"]}
    whole = build(progress=watch, cache=tmp_path / "whole", **settings)
    assert [watch.phases[name] for name in ("read", "view crop", "encode")] == [50, 50, 50]
    assert "tokens/s" in watch.text
    for phase in ("read", "encode"):
        with pytest.raises(KeyboardInterrupt):
            build(progress=Watch(phase), **settings)
    assert files(build(**settings).folder) == files(whole.folder)


# What is refused


@pytest.mark.parametrize(
    ("settings", "error", "noun"),
    [
        ({"codec": "int4"}, InputError, "codec"),
        ({"shard_rows": 0}, InputError, "shard_rows"),
        ({"threads": 0}, InputError, "threads"),
        ({"compute_dtype": "float16"}, InputError, "GPU"),
        ({"output": "tokens"}, InputError, "output"),
        ({"output": "logits", "codec": "int8"}, InputError, "logits"),
        ({"name": "../up"}, InputError, "corpus"),
        ({"teacher": "no-such-teacher"}, TeacherError, "no-such-teacher"),
        ({"source": "none.txt"}, MissingInputError, "none.txt"),
        ({"format": "parquet"}, InputError, "parquet"),
        ({"embed_views": ["crop"]}, InputError, "crop"),
        ({"views": ["column:x"]}, MissingInputError, "column"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else None,
)
def test_an_impossible_build_is_refused_before_anything_is_written(
    tmp_path: Path, build: Build, loaded_teacher: Teacher, settings: dict[str, Any], error: Any, noun: str
) -> None:
    with pytest.raises(error, match=f"(?i){noun}"):
        build(settings.pop("source", None), **{"teacher": loaded_teacher, **settings})
    assert not (tmp_path / "cache").exists()


def test_a_source_that_cannot_be_read_changes_nothing(tmp_path: Path, build: Build) -> None:
    before = files(build().folder)
    for name, content in {"a.parquet": b"no Parquet", "a.txt": b"", "a.csv": b"left,right\na,b\n"}.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError):
            build(tmp_path / name)
    assert files(tmp_path / "cache") == before
    with pytest.raises(CacheFormatError, match=r"corpus\.txt"):
        build(cache=tmp_path)  # a folder of other things


def test_errors_and_a_build_with_nothing_to_do_come_before_the_model_is_loaded(
    tmp_path: Path, tiny_teacher: Path
) -> None:
    source, cache = corpus_file(tmp_path), tmp_path / "cache"
    embedcache.build(source, teacher=tiny_teacher, cache=cache)
    script = """
import sys, embedcache
from embedcache import ReadOptions
source, teacher, cache = sys.argv[1:]
assert embedcache.build(source, teacher=teacher, cache=cache).result.cached == 50
for sources, column in (("none.txt", None), (source, "x")):
    try:
        embedcache.build(sources, teacher=teacher, cache="new", read=ReadOptions(text_column=column))
    except embedcache.EmbedCacheError:
        continue
    raise SystemExit("no error")
print("torch" in sys.modules)
"""
    arguments = [sys.executable, "-c", script, str(source), str(tiny_teacher), str(cache)]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "False\n"


def test_a_vector_that_is_not_finite_names_its_row_and_stores_nothing_of_its_shard(
    tmp_path: Path, build: Build, tiny_teacher: Path
) -> None:
    poisoned = load_teacher(tiny_teacher, device="cpu")
    with torch.no_grad():
        row = poisoned.model[0].tokenizer.convert_tokens_to_ids("bird")
        poisoned.model[0].model.embeddings.word_embeddings.weight[row] = float("nan")
    clean = [text for text in TEXTS if "bird" not in text][:24]
    source = corpus_file(tmp_path, [*clean[:13], "a bird sings", *clean[13:]])
    with pytest.raises(NonFiniteVectorError, match=r"row 13 of corpus 'corpus' \('a bird sings'\)"):
        build(source, teacher=poisoned, shard_rows=5)
    assert len(list(tmp_path.glob("cache/teachers/*/shards/*"))) == 2
    assert np.isfinite(Cache(tmp_path / "cache").lookup(clean[:10])).all()


def test_a_model_that_changed_is_another_teacher_and_a_false_note_is_refused(
    tmp_path: Path, build: Build, tiny_teacher: Path
) -> None:
    model = shutil.copytree(tiny_teacher, tmp_path / "model")
    time.sleep(0.06)  # the contract of files that have only just changed is not noted
    cache = build(teacher=str(model))
    (note,) = cache.derived_folder.glob("contracts/*.json")
    value = read_sealed_json(note)
    write_sealed_json(note, {**value, "max_length": 9})
    with pytest.raises(ContractMismatchError, match="max_length"):
        build(teacher=str(model))
    write_sealed_json(note, value)
    config = json.loads((model / "sentence_bert_config.json").read_text())
    (model / "sentence_bert_config.json").write_text(json.dumps({**config, "max_seq_length": 9}))
    with pytest.raises(ContractMismatchError, match="max_length 64 -> 9"):
        build(teacher=str(model))


def test_nothing_that_is_shared_holds_a_path(tmp_path: Path, build: Build, tiny_teacher: Path) -> None:
    cache = build(teacher=tiny_teacher)
    for content in files(cache.folder).values():
        assert str(tmp_path).encode() not in content
        assert str(tiny_teacher.parent).encode() not in content
    assert cache.teacher().origin == {"spec": "tiny"}
    assert cache.model_source(cache.teacher()) == str(tiny_teacher)


# Views


def test_views_are_made_once_and_added_to(build: Build) -> None:
    cache = build(views=["crop", "delete-words*2"])
    assert outcomes(cache) == dict.fromkeys(["crop", "delete-words-1", "delete-words-2"], "made")
    assert result(cache).views[0].counts == {"changed": 50}
    before = files(cache.folder)
    again = build(views=["crop", "delete-words*3"])
    assert list(outcomes(again).values()) == [*["there already"] * 3, "made"]
    assert files(cache.folder).items() >= before.items()
    assert len(build().corpus().view_names()) == 4
    with pytest.raises(InputError, match=r"seed 0, not .*seed 1.*overwrite"):
        build(views=["crop"], view_seed=1)
    assert build(views=["crop"], view_seed=1, overwrite=True).corpus().view("crop").recipe.seed == 1


def test_the_teacher_encodes_the_original_unless_asked(tmp_path: Path, build: Build) -> None:
    cache = build(views=["crop", "delete-words"])
    crop, shorter = (cache.corpus().view(name).texts() for name in ("crop", "delete-words"))
    assert counts(cache) == (50, 0)
    with pytest.raises(MissingVectorsError):
        cache.lookup(crop)
    again = build(views=["crop"], embed_views=["crop"])
    assert (*counts(again), result(again).distinct) == (50, 50, 100)
    assert again.lookup(crop).shape == (50, 16)
    # A view made before can be encoded without being named again.
    assert result(build(embed_views=["crop", "delete-words"])).encoded == len(set(shorter) - set(crop))
    # Texts that views have in common are encoded once.
    source = corpus_file(tmp_path, ["one", "two", "three four"], "short.txt")
    cache = build(source, views=["crop", "copy=crop"], embed_views=["crop", "copy"])
    assert (*counts(cache), result(cache).distinct) == (4, 5, 9)


def test_a_column_of_the_source_is_a_view(tmp_path: Path, build: Build) -> None:
    source = tmp_path / "pairs.csv"
    rows = 'text,fr,n\nA cat sleeps.,Un chat dort.,1\n,skipped,2\nHello there,"  ",3\nA dog,"Un, chien",4\n'
    source.write_text(rows)
    column = {"views": ["column:fr"], "text_column": "text"}
    cache = build(source, **column)
    assert cache.corpus().view("column-fr").texts() == ["Un chat dort.", "Hello there", "Un, chien"]
    assert result(cache).views[0].counts == {"changed": 2, "empty cell": 1}
    source.write_text(rows.replace("Un chat", "Le chat"))
    with pytest.raises(InputError, match="overwrite"):
        build(source, **column)
    assert build(source, **column, overwrite=True).corpus().view("column-fr").texts()[0] == "Le chat dort."
