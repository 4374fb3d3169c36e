"""Which corpus of a remote is trained on: the one that was asked for, whatever is called so here or there."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from distill_helpers import build, small_run
from stream_helpers import same

from distill.errors import CheckpointError, ConfigError
from distill.layout import CONFIG, RECORD
from distill.training.run import resume
from distill.training.tracking import TrainProgress
from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.share import PullChoice, pull, push
from embedcache.testing import sentences

pytest_plugins = ["distill_fixtures"]


class Stop(Exception):  # noqa: N818 - what stops a run here is no error
    """Stands for whatever ends a process."""


@dataclass(frozen=True)
class Two:
    """A remote that two have pushed a corpus called ``ann`` to.

    Attributes:
        remote: its folder.
        caches: theirs.
        digests: of their corpora.
    """

    remote: Path
    caches: tuple[Path, Path]
    digests: tuple[str, str]

    def asked(self, number: int) -> str:
        """What the program itself says to give as ``--corpus``."""
        return f"ann@{self.digests[number][:12]}"


def build_ann(folder: Path, teacher_folder: Path, seed: int) -> Path:
    folder.mkdir()
    (folder / "ann.txt").write_text("".join(f"{one}\n" for one in sentences(80, seed=seed)), encoding="utf-8")
    return build(folder / "ann.txt", teacher_folder, folder / "cache", shard_rows=16).folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Two:
    """Not to be changed."""
    folder = tmp_path_factory.mktemp("two-corpora")
    caches = [build_ann(folder / name, teacher_folder, seed) for name, seed in (("a", 1), ("b", 2))]
    for cache in caches:
        push(cache, str(folder / "remote"))
    first, second = (Cache(cache).corpus().info.digest for cache in caches)
    return Two(folder / "remote", (caches[0], caches[1]), (first, second))


@pytest.fixture
def settings(teacher_folder: Path, tmp_path: Path) -> dict[str, Any]:
    return {
        "teacher": "tiny",
        "teacher_model": str(teacher_folder),
        "mirror": str(tmp_path / "mirror"),
        "held_out": 10,
        "batch_size": 16,
        "checkpoint_every": 1,
    }


def local(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key != "mirror"}


def digest_of(run: Path) -> str:
    found: str = json.loads((run / RECORD).read_text(encoding="utf-8"))["corpus"]["digest"]
    return found


def corpora_in(mirror: Path) -> dict[str, str]:
    return {corpus.name: corpus.info.digest for corpus in Cache(mirror).corpora()}


def stopped(remote: Path, out: Path, **settings: Any) -> None:
    """Begin a run and end it after two steps."""

    def look(progress: TrainProgress) -> None:
        if progress.phase == "train" and progress.step == 2:
            raise Stop

    with pytest.raises(Stop):
        small_run(remote, out, **settings, on_progress=look)


def test_of_two_of_one_name_the_digest_tells_which(two, settings, tmp_path):
    for number in (0, 1):
        out = tmp_path / f"run-{number}"
        small_run(two.remote, out, **settings, corpus=two.asked(number))
        small_run(two.caches[number], tmp_path / f"local-{number}", **local(settings))
        assert same(out, tmp_path / f"local-{number}")
        assert digest_of(out) == two.digests[number]
        # Somebody who runs it again, with what it was made by, gets the same.
        assert yaml.safe_load((out / CONFIG).read_text(encoding="utf-8"))["corpus"] == two.asked(number)
    assert not same(tmp_path / "run-0", tmp_path / "run-1")
    # Both lie in the one mirror, and neither comes a second time.
    both = {"ann": two.digests[0], f"ann-{two.digests[1][:12]}": two.digests[1]}
    assert corpora_in(tmp_path / "mirror") == both
    again = small_run(two.remote, tmp_path / "again", **settings, corpus=two.asked(1))
    assert corpora_in(tmp_path / "mirror") == both
    assert again.corpus == f"ann-{two.digests[1][:12]}"
    assert same(tmp_path / "again", tmp_path / "run-1")


def test_a_digest_of_a_manifest_tells_it_as_well(two, settings, tmp_path):
    of_second = [
        path.stem
        for path in (two.remote / "manifests").iterdir()
        if Cache(two.caches[1]).corpus().info.parts[0].sha256 in path.read_text(encoding="utf-8")
    ]
    small_run(two.remote, tmp_path / "a", **settings, corpus=two.asked(0))
    for name in ("b", "c"):
        small_run(two.remote, tmp_path / name, **settings, corpus=f"ann@{of_second[0][:12]}")
        assert digest_of(tmp_path / name) == two.digests[1]
    assert len(corpora_in(tmp_path / "mirror")) == 2


def test_a_corpus_that_the_mirror_has_by_another_name_is_taken_for_what_it_is(two, settings, tmp_path):
    pull(
        tmp_path / "mirror",
        str(two.remote),
        PullChoice(corpora=[two.asked(1)], alias="mine"),
        sample_check=False,
    )
    small_run(two.remote, tmp_path / "run", **settings, corpus=two.asked(1))
    assert corpora_in(tmp_path / "mirror") == {"mine": two.digests[1]}
    assert digest_of(tmp_path / "run") == two.digests[1]


@pytest.mark.parametrize("corpus", [None, "ann"])
@pytest.mark.parametrize("is_one_here", [False, True])
def test_of_two_of_one_name_none_is_chosen_for_anybody(two, settings, tmp_path, corpus, is_one_here):
    if is_one_here:
        small_run(two.remote, tmp_path / "first", **settings, corpus=two.asked(0))
    with pytest.raises(InputError, match=r"has 2 corpora called 'ann' .*--corpus ann@DIGEST") as refused:
        small_run(two.remote, tmp_path / "run", **settings, corpus=corpus)
    assert all(digest[:12] in str(refused.value) for digest in two.digests)
    assert str(two.remote) in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_digest_of_nothing_is_refused(two, settings, tmp_path):
    with pytest.raises(InputError, match="no corpus 'ann' whose digest, or manifest's, begins with 000000"):
        small_run(two.remote, tmp_path / "run", **settings, corpus="ann@000000")
    with pytest.raises(InputError, match="six digits or more"):
        small_run(two.remote, tmp_path / "run", **settings, corpus="ann@xyz")


def test_a_run_goes_on_with_the_corpus_it_began_with_in_any_mirror(two, settings, tmp_path):
    stopped(two.remote, tmp_path / "a", **settings, corpus=two.asked(1))
    assert corpora_in(tmp_path / "mirror") == {"ann": two.digests[1]}
    # The mirror is lost, and another run has filled it with the other corpus since.
    shutil.rmtree(tmp_path / "mirror")
    small_run(two.remote, tmp_path / "b", **settings, corpus=two.asked(0))
    assert resume(tmp_path / "a").resumed > 0
    small_run(two.caches[1], tmp_path / "c", **local(settings))
    assert same(tmp_path / "a", tmp_path / "c")
    assert not same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("is_named", [False, True])
def test_a_run_goes_on_though_another_of_its_name_has_come(two, settings, tmp_path, is_named):
    remote = tmp_path / "remote"
    push(two.caches[0], str(remote))
    named = {"corpus": "ann"} if is_named else {}
    stopped(remote, tmp_path / "a", **settings, **named)
    push(two.caches[1], str(remote))
    shutil.rmtree(tmp_path / "mirror")
    assert resume(tmp_path / "a").resumed > 0
    assert digest_of(tmp_path / "a") == two.digests[0]
    # A new one has to say which.
    with pytest.raises(InputError, match="choose one with --corpus ann@DIGEST"):
        small_run(remote, tmp_path / "b", **settings, **named)


def test_a_run_does_not_go_on_with_another_corpus(two, settings, tmp_path):
    remote = tmp_path / "remote"
    push(two.caches[0], str(remote))
    stopped(remote, tmp_path / "a", **settings)
    shutil.rmtree(remote)
    push(two.caches[1], str(remote))
    shutil.rmtree(tmp_path / "mirror")
    with pytest.raises(InputError, match=re.escape(two.digests[0])):
        resume(tmp_path / "a")


def test_a_run_goes_on_from_a_cache_that_was_pulled(two, settings, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for number in (0, 1):
        stopped(two.remote, tmp_path / f"run-{number}", **local(settings), corpus=two.asked(number))
    whole = tmp_path / "whole"
    pull(whole, str(two.remote), PullChoice(corpora=[two.asked(0)]), sample_check=False)
    pull(whole, str(two.remote), PullChoice(corpora=[two.asked(1)], alias="second"), sample_check=False)
    for number in (0, 1):
        assert resume(tmp_path / f"run-{number}", cache=str(whole)).resumed > 0
        assert digest_of(tmp_path / f"run-{number}") == two.digests[number]
    stopped(two.remote, tmp_path / "third", **local(settings), corpus=two.asked(0))
    with pytest.raises(ConfigError, match=f"has a digest that begins with {two.digests[0]}: it holds ann"):
        resume(tmp_path / "third", cache=str(two.caches[1]))


def test_another_corpus_is_not_gone_on_with_whatever_its_name(two, settings, tmp_path):
    stopped(two.caches[0], tmp_path / "run", **local(settings))
    with pytest.raises(CheckpointError, match="the run's corpus was"):
        resume(tmp_path / "run", cache=str(two.caches[1]))


def test_of_several_corpora_one_has_to_be_named_before_any_comes(two, settings, tmp_path, teacher_folder):
    remote = tmp_path / "remote"
    push(two.caches[0], str(remote))
    (tmp_path / "bob.txt").write_text("one text\nanother\n", encoding="utf-8")
    build(tmp_path / "bob.txt", teacher_folder, tmp_path / "bobs")
    push(tmp_path / "bobs", str(remote))
    with pytest.raises(InputError, match=r"several corpora \(ann, bob\): choose one") as refused:
        small_run(remote, tmp_path / "run", **settings)
    assert f"{remote} has several" in str(refused.value)
    assert str(tmp_path / "mirror") not in str(refused.value)
    assert not (tmp_path / "mirror" / "corpora").exists()
    small_run(remote, tmp_path / "run", **settings, corpus="ann")
    # Another that lies in the mirror is no reason to ask.
    shutil.rmtree(tmp_path / "remote")
    push(two.caches[0], str(remote), new_remote=True)
    shutil.copytree(tmp_path / "bobs", tmp_path / "other")
    run = small_run(remote, tmp_path / "second", **{**settings, "mirror": str(tmp_path / "other")})
    assert run.corpus == "ann"
    assert run.config.corpus == "ann"
