"""Garbage collection and removal lose nothing that anything needs, wherever they are interrupted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from check_helpers import run
from click.testing import CliRunner
from flat_build import build
from kill_helpers import cut_off_at
from small_caches import TEXTS, add_corpus, add_teacher, add_view, batch

from embedcache import fsio
from embedcache.cache import Cache
from embedcache.cli.main import cli
from embedcache.errors import CorruptCacheError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.gc import GRACE_HOURS, collect_garbage, find_removal
from embedcache.inventory import QUARANTINE
from embedcache.testing import FakeEncoder, fake_teacher

KINDS = ["arrow", "lmdb"]


def filled(folder: Path, kind: str = "arrow") -> Cache:
    """Return a cache of corpus ``words`` with view ``crop``, and a teacher with ten shards of its texts."""
    cache = Cache.create(folder)
    corpus = add_corpus(cache, "words", TEXTS[:100])
    add_view(corpus, "crop=crop")
    add_teacher(cache, "tiny", [batch(TEXTS[n : n + 10], seed=n) for n in range(0, 100, 10)], kind=kind)
    return cache


def age(folder: Path, hours: float = GRACE_HOURS + 1) -> None:
    then = time.time() - hours * 3600
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (then, then))


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def vectors(cache: Cache) -> int:
    return len(cache.store(cache.teacher("tiny").contract))


def remove(cache: Cache, kind: str, name: str) -> int:
    found = find_removal(cache, kind, name)
    found.delete()
    return found.bytes


# fmt: off
LEFTOVERS = {
    "corpora/words/.tmp-1-corpus.json": "corpora/words/.tmp-1-corpus.json",
    f"corpora/words/{'0' * 64}.arrow": f"corpora/words/{'0' * 64}.arrow",
    f"corpora/words/views/crop/{'0' * 64}.arrow": f"corpora/words/views/crop/{'0' * 64}.arrow",
    "corpora/never/x.arrow": "corpora/never",
    "corpora/words/views/never/.tmp-draft-1": "corpora/words/views/never",
    f"teachers/{'1' * 64}/shards/.tmp-2": f"teachers/{'1' * 64}/shards/.tmp-2",
    f"derived/index/{'1' * 64}/x.mdb": f"derived/index/{'1' * 64}",
    "derived/tokens/gone/ids.bin": "derived/tokens/gone",
    "derived/incoming/a/b": "derived/incoming",
    f"derived/pending/{'1' * 64}/x.arrow": f"derived/pending/{'1' * 64}",
    f"{QUARANTINE}/a/b": QUARANTINE,
}
# fmt: on


def test_leftovers_go_as_a_whole_once_untouched_for_a_week(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    cache.lookup(TEXTS[:3])
    kept = files(tmp_path)
    assert collect_garbage(cache, hours=0, unused=True, quarantine=True) == []
    for path in LEFTOVERS:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"left over")
    age(tmp_path)
    for path in LEFTOVERS:
        os.utime(tmp_path / path)
    assert collect_garbage(cache, quarantine=True) == []
    age(tmp_path, GRACE_HOURS - 1)
    assert collect_garbage(cache, quarantine=True) == []
    age(tmp_path)
    found = collect_garbage(cache, quarantine=True, dry_run=True)
    assert {(one.path, one.bytes) for one in found} == {
        (str(tmp_path / one), 9) for one in LEFTOVERS.values()
    }
    assert len(collect_garbage(cache)) == len(LEFTOVERS) - 1
    # What repair has put aside goes only when it is asked for.
    assert [one.path for one in collect_garbage(cache, quarantine=True)] == [str(tmp_path / QUARANTINE)]
    assert files(tmp_path) == kept
    assert len(cache.lookup(TEXTS[:100])) == 100


def test_files_in_use_stay(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    arrays = tmp_path / "derived" / "tokens" / "mine" / "tokens.json"
    write_sealed_json(arrays, {"corpus": cache.corpus().info.digest})
    old, young = (tmp_path / "corpora" / "words" / "views" / "new" / f".tmp-draft-{n}" for n in range(2))
    old.parent.mkdir()
    old.write_text("old")
    age(tmp_path)
    young.write_text("of a build that is still making this view")
    assert collect_garbage(cache) == []
    assert arrays.exists()
    assert old.exists()


def test_views_of_a_replaced_corpus_and_replaced_indexes_are_garbage(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    cache.lookup(TEXTS[:1])
    recipe = tmp_path / "corpora" / "words" / "views" / "crop" / "recipe.json"
    write_sealed_json(recipe, {**read_sealed_json(recipe), "of": "0" * 64})
    index = tmp_path / "derived" / "index" / cache.teacher().contract.id / f"{'2' * 64}.npy"
    index.write_bytes(b"an index")
    age(tmp_path)
    assert {one.path for one in collect_garbage(cache)} == {str(recipe.parent), str(index)}
    assert list(index.parent.glob("*.npy"))


@pytest.mark.parametrize("kind", KINDS)
def test_unused_vectors_go_only_when_asked_and_a_week_old(tmp_path: Path, kind: str) -> None:
    cache = filled(tmp_path, kind)
    remove(cache, "corpus", "words")
    add_corpus(cache, "words", TEXTS[:15])
    age(tmp_path, GRACE_HOURS - 1)
    assert collect_garbage(cache, unused=True) == []
    age(tmp_path)
    assert collect_garbage(cache) == []
    assert len(collect_garbage(cache, unused=True, dry_run=True)) == 8
    assert vectors(cache) == 100
    # A shard with one text of the corpus stays whole.
    assert len(collect_garbage(cache, unused=True)) == 8
    assert (vectors(cache), len(cache.lookup(TEXTS[:15]))) == (20, 15)
    # Those of a teacher without a name go with it.
    folder = cache.teacher_folder(cache.teacher().contract)
    (folder / "names" / "tiny.json").unlink()
    age(tmp_path)
    collect_garbage(cache)
    assert folder.exists()
    age(tmp_path)
    collect_garbage(cache, unused=True)
    assert not folder.exists()


def test_vectors_of_a_view_are_used_and_those_that_are_never_read_are_not(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    add_teacher(cache, "tiny", [batch(cache.corpus().view("crop").texts())])
    age(tmp_path)
    assert collect_garbage(cache, unused=True) == []
    remove(cache, "view", "words/crop")
    # Of a text in two shards one vector is read.
    add_teacher(cache, "tiny", [batch(TEXTS[:1], seed=seed) for seed in range(8, 12)])
    age(tmp_path)
    before = cache.lookup(TEXTS[:100]).tobytes()
    gone = [one for one in collect_garbage(cache, unused=True) if "shards" in one.path]
    assert len(gone) in (4, 5)
    assert Cache(tmp_path).lookup(TEXTS[:100]).tobytes() == before


def built(folder: Path, kind: str) -> Cache:
    """Build a hundred texts, ten a shard."""
    source = folder.with_name("words.txt")
    source.write_text("".join(f"{text}\n" for text in TEXTS[:100]))
    teacher = fake_teacher(8, name="tiny")
    return build(
        source, teacher=teacher, encoder=FakeEncoder(teacher), cache=folder, shard_rows=10, store=kind
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_build_that_runs_while_vectors_are_collected_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    cache, seen = built(tmp_path / "c", kind), list[Path]()
    remove(cache, "corpus", "words")
    removal = "remove" if kind == "arrow" else "lmdb-committed"

    def build_again(step: str, path: Path) -> None:
        if not seen and step == removal and path.parent.parent.name in ("teachers", teacher):
            seen.append(path)
            built(cache.folder, kind)

    teacher = cache.teacher().contract.id
    age(cache.folder)
    monkeypatch.setattr(fsio, "on_write_step", build_again)
    collect_garbage(cache, unused=True)
    assert seen
    assert len(Cache(cache.folder).lookup(TEXTS[:100])) == 100


@pytest.mark.parametrize("kind", KINDS)
def test_fresh_files_of_a_build_are_never_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    freed: list[object] = []

    def collect(step: str, path: Path) -> None:
        if (step, path.parent.name) == ("recorded", "shards") or step == "lmdb-committed":
            freed.extend(collect_garbage(Cache(tmp_path / "c"), hours=0, unused=True))

    monkeypatch.setattr(fsio, "on_write_step", collect)
    assert len(built(tmp_path / "c", kind).lookup(TEXTS[:100])) == 100
    assert freed == []


def test_nothing_is_deleted_from_a_damaged_cache(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    (tmp_path / "corpora" / "words" / "views" / "crop" / "recipe.json").write_text("{")
    (tmp_path / ".tmp-x").write_text("")
    age(tmp_path)
    before = files(tmp_path)
    with pytest.raises(CorruptCacheError):
        collect_garbage(cache, unused=True)
    assert files(tmp_path) == before


def test_a_removed_corpus_or_view_keeps_vectors_and_may_be_damaged(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    for kind, name, document in (
        ("view", "words/crop", "words/views/crop/recipe.json"),
        ("corpus", "words", "words/corpus.json"),
    ):
        path = tmp_path / "corpora" / document
        path.write_text("{")
        assert remove(cache, kind, name) > 0
        assert not path.parent.exists()
    assert vectors(cache) == 100


def test_a_teacher_goes_with_its_last_name(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    contract = cache.teacher().contract
    cache.register_teacher("alias", contract, {})
    assert remove(cache, "teacher", "alias") == 0
    assert vectors(cache) == 100
    assert remove(cache, "teacher", "tiny") > 0
    assert not cache.teacher_folder(contract).exists()
    assert not (tmp_path / "derived" / "index" / contract.id).exists()


@pytest.mark.parametrize("stop", [1, 2])
@pytest.mark.parametrize(("kind", "name"), [("corpus", "words"), ("view", "words/crop"), ("teacher", "tiny")])
def test_an_interrupted_removal_leaves_no_half_and_gc_finishes_it(
    tmp_path: Path, kind: str, name: str, stop: int
) -> None:
    cache = filled(tmp_path)
    folder = find_removal(cache, kind, name).paths[-1]
    with cut_off_at(stop):
        remove(cache, kind, name)
    if stop == 1:
        assert cache.corpus().view("crop").texts()
        assert vectors(cache) == 100
        return
    left = (len(cache.corpus_names()), len(cache.teachers()))
    assert left == {"corpus": (0, 1), "view": (1, 1), "teacher": (1, 0)}[kind]
    collect_garbage(cache, hours=0, unused=kind == "teacher")
    assert not folder.exists()


def test_rm_asks_first(tmp_path: Path) -> None:
    cache = filled(tmp_path)
    words = ["rm", "view", "words/crop", "--cache", str(cache.folder)]
    for answer, code in (("n\n", 1), ("", 1), ("y\n", 0)):
        assert cache.corpus().view_names() == ["crop"]
        assert CliRunner().invoke(cli, words, input=answer).exit_code == code
    for kind, name in (("corpus", "words"), ("teacher", "tiny")):
        assert run("rm", kind, name, "--yes", "--cache", cache.folder)[0] == 0
    assert (cache.corpora(), cache.teachers()) == ([], [])
