"""Explaining: cached or not, and if not, whether it is the contract, the text, or an unfinished build."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import flat_build
import numpy as np
import pytest

from embedcache.cache import Cache
from embedcache.cli.main import main
from embedcache.corpus.readers import ReadOptions, ReadReport, RowBatch
from embedcache.corpus.store import store_corpus
from embedcache.errors import InputError, TeacherError
from embedcache.explain import Wanted, candidates, explain_sources, explain_texts, want
from embedcache.keys import key
from embedcache.near_texts import NearText, Occurrence
from embedcache.store import VectorBatch
from embedcache.testing import example_batch, example_contract, sentences

TEXTS = sentences(12)
MEAN = example_contract()
ASKED = Wanted("mean", MEAN, loaded=False)


class Shelf:
    """A cache filled by hand."""

    def __init__(self, folder: Path) -> None:
        self.cache = Cache.create(folder)

    def corpus(self, name: str, texts: list[str]) -> None:
        store_corpus(self.cache.corpora_folder, name, [RowBatch(texts, None, None)], ReadReport())

    def teacher(self, name: str, texts: list[str] | None = None, **changes: object) -> None:
        contract = example_contract(**changes)
        self.cache.register_teacher(name, contract, {"spec": name})
        if texts:
            self.cache.store(contract).put(example_batch(texts))


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    shelf = Shelf(tmp_path / "shelf")
    shelf.corpus("news", TEXTS)
    shelf.teacher("mean", TEXTS)
    return shelf


def test_a_cached_text_is_found_with_all_that_is_known_of_it(shelf: Shelf) -> None:
    shelf.corpus("more", ["x", *TEXTS[:2], *TEXTS[:2] * 4])
    found = explain_texts(shelf.cache, ASKED, [TEXTS[1]])
    assert (found.known, found.rows, found.cached, found.truncated) == (("mean",), 1, 1, 0)
    (one,) = found.texts
    (shard,) = shelf.cache.store(MEAN).shards
    assert one.cached
    assert (one.shard, one.codec, one.tokens, one.truncated) == (shard.name, "float16", 5, False)
    assert one.key == key(TEXTS[1]).hex()
    assert one.rows == (Occurrence("more", 5, (2, 4, 6, 8, 10)), Occurrence("news", 1, (1,)))
    assert one.near == ()


def test_a_truncated_text_and_one_of_unknown_length_are_told_apart(shelf: Shelf) -> None:
    batch = example_batch(["cut", "unknown"])
    tokens, cut = np.array([64, 0], np.int32), np.array([True, False])
    shelf.cache.store(MEAN).put(VectorBatch(batch.keys, batch.vectors, tokens, cut))
    found = explain_texts(shelf.cache, ASKED, ["cut", "unknown"])
    assert [(one.tokens, one.truncated) for one in found.texts] == [(64, True), (None, False)]
    assert (found.cached, found.truncated) == (2, 1)


def test_an_unknown_text_is_in_no_corpus(shelf: Shelf) -> None:
    (one,) = explain_texts(shelf.cache, ASKED, ["never seen"]).texts
    assert (one.cached, one.rows, one.near, one.shard, one.tokens) == (False, (), (), None, None)


def test_a_row_without_a_vector_is_told(shelf: Shelf) -> None:
    shelf.corpus("half", ["built", "never built"])
    (one,) = explain_texts(shelf.cache, ASKED, ["never built"]).texts
    assert not one.cached
    assert one.rows == (Occurrence("half", 1, (1,)),)


@pytest.mark.parametrize(
    ("asked", "held"),
    [
        ("a b", "a b "),
        ("a b", "a  b"),
        ("A b", "a b"),
        ("café", unicodedata.normalize("NFD", "café")),
        ("hello, world!", "Hello  world"),
    ],
)
def test_a_near_text_is_named(shelf: Shelf, asked: str, held: str) -> None:
    shelf.corpus("odd", ["something else", held])
    (one,) = explain_texts(shelf.cache, ASKED, [asked]).texts
    assert not one.cached
    assert one.near == (NearText(held, "odd", 1),)


@pytest.mark.parametrize("held", ["b a", "à b", "...", "a b 1."])
def test_another_text_is_not_near(shelf: Shelf, held: str) -> None:
    shelf.corpus("odd", [held])
    (one,) = explain_texts(shelf.cache, ASKED, ["a b"]).texts
    assert one.near == ()


def test_a_cached_text_has_no_near_ones_and_several_near_ones_are_few(shelf: Shelf) -> None:
    shelf.corpus("odd", ["a b ", " a b", "a b ", "A B", "a  b", "a b", "A b"])
    (one,) = explain_texts(shelf.cache, ASKED, ["a b"]).texts
    assert [near.text for near in one.near] == ["a b ", " a b", "A B"]
    shelf.cache.store(MEAN).put(example_batch(["a b"]))
    (one,) = explain_texts(shelf.cache, ASKED, ["a b"]).texts
    assert one.near == ()


def test_the_nearest_teacher_comes_first_and_names_its_field(shelf: Shelf) -> None:
    shelf.teacher("other-model", weights="9" * 64)
    shelf.teacher("longer", max_length=128)
    shelf.teacher("cls-longer", max_length=128, pooling="cls")
    shelf.teacher("other-model-longer", weights="9" * 64, max_length=128, prompt="q: ")
    asked = example_contract(max_length=32)
    found = candidates(shelf.cache, asked)
    assert [one.name for one in found] == [
        "longer",
        "mean",
        "cls-longer",
        "other-model",
        "other-model-longer",
    ]
    assert found[0].differences == {"max_length": (128, 32)}
    assert found[2].differences == {"max_length": (128, 32), "pooling": ("cls", "mean")}
    assert set(found[3].differences) == {"weights", "max_length"}
    assert [one.name for one in candidates(shelf.cache, MEAN)] == [
        "longer",
        "cls-longer",
        "other-model",
        "other-model-longer",
    ]


def test_one_digest_counts_more_than_many_settings(shelf: Shelf) -> None:
    shelf.teacher("other-tokenizer", tokenizer="9" * 64)
    many = {"pooling": "cls", "prompt": "q: ", "max_length": 9, "normalize": False}
    assert [one.name for one in candidates(shelf.cache, example_contract(**many))] == [
        "mean",
        "other-tokenizer",
    ]


def test_a_contract_that_is_not_there_finds_nothing_but_what_could_be_carried(shelf: Shelf) -> None:
    asked = Wanted("mean", example_contract(max_length=32), loaded=True)
    found = explain_texts(shelf.cache, asked, TEXTS[:3])
    assert (found.known, found.cached, found.reusable) == ((), 0, 3)
    assert [one.rows[0].corpus for one in found.texts] == ["news"] * 3
    assert [one.lender for one in found.texts] == ["mean"] * 3
    shelf.cache.store(asked.contract).put(example_batch(TEXTS[:1]))
    mixed = explain_texts(shelf.cache, asked, [*TEXTS[:2], "never seen"])
    assert [(one.cached, one.lender) for one in mixed.texts] == [(True, None), (False, "mean"), (False, None)]
    too_short = Wanted("mean", example_contract(max_length=4), loaded=True)
    assert explain_texts(shelf.cache, too_short, TEXTS[:3]).reusable == 0


def test_a_file_is_counted_and_its_first_missing_texts_explained(shelf: Shelf, tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    rows = [*TEXTS[:4], "one more", "", "another", TEXTS[0] + " ", "one more", "last"]
    path.write_text("".join(f"{row}\n" for row in rows))
    found = explain_sources(shelf.cache, ASKED, [path], ReadOptions(), show=3)
    assert (found.rows, found.cached, found.skipped) == (9, 4, {"empty": 1})
    assert [one.text for one in found.texts] == ["one more", "another", TEXTS[0] + " "]
    assert found.texts[2].near[0].text.strip() == found.texts[2].text.strip()
    assert explain_sources(shelf.cache, ASKED, [path], ReadOptions(), show=0).texts == ()
    limited = explain_sources(shelf.cache, ASKED, [path], ReadOptions(limit=5))
    assert (limited.rows, limited.cached) == (5, 4)
    with pytest.raises(InputError, match="--show -1"):
        explain_sources(shelf.cache, ASKED, [path], ReadOptions(), show=-1)


@pytest.fixture
def built(tmp_path: Path, plain_teacher: Path) -> Cache:
    source = tmp_path / "corpus.txt"
    source.write_text("".join(f"{text}\n" for text in TEXTS))
    return flat_build.build(
        source, teacher=plain_teacher, cache=tmp_path / "cache", pooling="cls", max_length=16, device="cpu",
        teacher_name="mine",
    )  # fmt: skip


def test_a_name_or_an_id_is_answered_from_the_cache(built: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*arguments: object, **settings: object) -> None:
        raise AssertionError("the model was loaded")

    monkeypatch.setattr("embedcache.teacher.load.load_teacher", never)
    contract = built.teacher().contract
    for name in ("mine", contract.id, contract.id[:6]):
        assert want(built, name) == Wanted("mine", contract, loaded=False)
    with pytest.raises(AssertionError, match="was loaded"):
        want(built, "mine", load=True)
    with pytest.raises(AssertionError, match="was loaded"):
        want(built, contract.id[:5])


def test_a_changed_setting_loads_the_model_and_keeps_the_others(built: Cache) -> None:
    contract = built.teacher().contract
    found = want(built, "mine", max_length=8)
    assert found.loaded
    assert contract.differences(found.contract) == {"max_length": (16, 8)}
    assert want(built, "mine", load=True).contract == contract
    assert contract.differences(want(built, "mine", normalize=True).contract) == {"normalize": (False, True)}
    assert contract.differences(want(built, "mine", pooling="mean").contract) == {"pooling": ("cls", "mean")}


def test_a_folder_is_loaded_as_a_build_would(built: Cache, plain_teacher: Path) -> None:
    found = want(built, str(plain_teacher), pooling="cls", max_length=16)
    assert found.contract == built.teacher().contract
    assert found.loaded
    with pytest.raises(TeacherError, match="--pooling"):
        want(built, str(plain_teacher))
    with pytest.raises(TeacherError, match="no teacher 'nobody'"):
        want(built, "nobody")


def test_a_model_that_has_changed_since_is_noticed(built: Cache, plain_teacher: Path, tmp_path: Path) -> None:
    import shutil

    copy = shutil.copytree(plain_teacher, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 0.5}))
    built.remember_model(built.teacher().contract, str(copy))
    assert want(built, "mine").contract == built.teacher().contract
    changed = want(built, "mine", load=True).contract
    assert set(built.teacher().contract.differences(changed)) == {"architecture"}


class Outcome(SimpleNamespace):
    """What a command did: code, out, err."""


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["embedcache", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return Outcome(code=code, out=out, err=err)

    return run


def test_the_command_explains_a_text(shelf: Shelf, shell: Callable[..., Outcome]) -> None:
    arguments = ("--teacher", "mean", "--cache", shelf.cache.folder)
    out = shell("explain", TEXTS[0], *arguments).out
    assert "teacher mean" in out
    assert "(by the cache's own record; --load asks the model): in the cache" in out
    assert f"{TEXTS[0]!r}: cached as float16 in shard" in out
    assert "5 tokens" in out
    assert "in corpus news, row 0 (counted from 0)" in out
    out = shell("explain", TEXTS[0].upper(), *arguments).out
    assert "not cached" in out
    assert f"differs in spelling: {TEXTS[0]!r} in corpus news, row 0" in out
    assert "in no corpus, and nothing like it" in shell("explain", "nothing", *arguments).out
    for empty in ("", " \n"):
        refused = shell("explain", empty, *arguments)
        assert (refused.code, refused.out) == (2, "")
        assert "the text is empty" in refused.err
    shelf.corpus("half", ["never built"])
    out = shell("explain", "never built", *arguments).out
    assert "in corpus half, row 0" in out
    assert "the row is there, its vector is not: run the build of that corpus again" in out
    found = json.loads(shell("explain", TEXTS[0], *arguments, "--json").out)
    assert found["wanted"]["contract_id"] == MEAN.id
    assert found["texts"][0]["cached"] is True


def test_the_command_names_the_field_that_differs(
    built: Cache, plain_teacher: Path, shell: Callable[..., Outcome]
) -> None:
    arguments = ("--teacher", plain_teacher, "--pooling", "cls", "--cache", built.folder)
    out = shell("explain", TEXTS[0], *arguments, "--max-length", 64).out
    assert "its vector is not" not in out
    assert "(the model was loaded): not in the cache" in out
    assert f"nearest: mine ({built.teacher().contract.id[:12]}), max_length 16 -> 64" in out
    as_built = (*arguments, "--max-length", 16)
    assert "in the cache as mine" in shell("explain", TEXTS[0], *as_built).out
    for flags, field in (
        (("--prompt", "the "), "prompt '' -> 'the '"),
        (("--truncate-dim", 4), "truncate_dim none -> 4"),
        (("--normalize",), "normalize False -> True"),
    ):
        assert field in shell("explain", TEXTS[0], *as_built, *flags).out
    found = json.loads(shell("explain", TEXTS[0], *arguments, "--max-length", 64, "--json").out)
    assert found["candidates"][0]["differences"] == {"max_length": [16, 64]}
    assert found["reusable"] == 1
    assert "a build carries its vector over from teacher mine, without the model" in out
    loaded = shell("explain", TEXTS[0], "--teacher", "mine", "--cache", built.folder, "--load").out
    assert "(the model was loaded): in the cache" in loaded


def test_a_name_the_cache_does_not_know_is_answered_with_those_it_does(
    shelf: Shelf, shell: Callable[..., Outcome]
) -> None:
    for unknown in (MEAN.id[:4], "mien"):
        outcome = shell("explain", "x", "--teacher", unknown, "--cache", shelf.cache.folder)
        assert outcome.code != 0
        assert f"no teacher {unknown!r}" in outcome.err
        assert "at least 6 digits of the contract id" in outcome.err
        assert f"mean ({MEAN.id[:12]})" in outcome.err
    by_id = shell("explain", "x", "--teacher", MEAN.id[:6], "--cache", shelf.cache.folder)
    assert by_id.code == 0
    elsewhere = shell("explain", "x", "--teacher", "no/such", "--cache", shelf.cache.folder)
    assert elsewhere.code != 0
    assert "teachers of the cache" not in elsewhere.err


def test_the_command_counts_a_file(shelf: Shelf, tmp_path: Path, shell: Callable[..., Outcome]) -> None:
    path = tmp_path / "file.data"
    rows = [{"text": text, "title": "t"} for text in (*TEXTS[:2], "new one", "new two", "new three")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + "\n")
    arguments = ("explain", path, "--teacher", "mean", "--cache", shelf.cache.folder, "--format", "jsonl")
    out = shell(*arguments, "--column", "text", "--show", 1).out
    assert "5 rows: 2 cached (0 of them truncated), 3 not" in out
    assert "rows skipped: 1 empty" in out
    assert "'new one': not cached" in out
    assert "new two" not in out
    assert "1 row: 0 cached" in shell(*arguments, "--text-column", "title", "--limit", 1).out


def test_the_command_reads_standard_input(
    shelf: Shelf, shell: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = "".join(f"{text}\n" for text in TEXTS[:3]).encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(data))))
    out = shell("explain", "-", "--teacher", "mean", "--cache", shelf.cache.folder).out
    assert "3 rows: 3 cached" in out


def test_what_looks_like_a_file_but_is_none_is_a_text_and_said_so(
    shelf: Shelf, shell: Callable[..., Outcome]
) -> None:
    arguments = ("--teacher", "mean", "--cache", shelf.cache.folder)
    outcome = shell("explain", "no-such-corpus.txt", *arguments)
    assert outcome.code == 0
    assert outcome.err == "there is no file 'no-such-corpus.txt': it is taken for a text\n"
    assert shell("explain", "A sentence.", *arguments).err == ""
    refused = shell("explain", "no-such-corpus.txt", *arguments, "--limit", 3)
    assert refused.code == 2
    assert "--limit is for files, and there is no file 'no-such-corpus.txt'" in refused.err
    assert "not cached" in shell("explain", "long " * 2000, *arguments).out


def test_an_empty_cache_and_none_are_told(
    tmp_path: Path, shell: Callable[..., Outcome], plain_teacher: Path
) -> None:
    Cache.create(tmp_path / "empty")
    arguments = ("--teacher", plain_teacher, "--pooling", "cls", "--cache", tmp_path / "empty")
    assert "the cache holds no teacher at all" in shell("explain", "x", *arguments).out
    gone = shell("explain", "x", "--teacher", "mean", "--cache", tmp_path / "none")
    assert gone.code == 2
    assert "no cache at" in gone.err


def test_the_quick_answer_needs_no_model(shelf: Shelf) -> None:
    arguments = ["embedcache", "explain", "x", "--teacher", "mean", "--cache", str(shelf.cache.folder)]
    code = f"import sys; sys.argv = {arguments}; from embedcache.cli.main import cli; "
    code += "cli(sys.argv[1:], standalone_mode=False); "
    code += "print(sorted({'torch', 'transformers', 'sentence_transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_two_teachers_of_one_name_are_not_guessed_between(shelf: Shelf) -> None:
    other = example_contract(pooling="cls")
    folder = shelf.cache.teacher_folder(other)
    shelf.teacher("second", pooling="cls")
    (folder / "names" / "second.json").rename(folder / "names" / "mean.json")
    with pytest.raises(InputError, match="two teachers are called 'mean'"):
        want(shelf.cache, "mean")
    assert want(shelf.cache, other.id).contract == other
