"""Training while a build goes on: what comes out does not depend on when the vectors came."""

from __future__ import annotations

import multiprocessing
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distill_helpers import TEXTS, build, build_ten_shards, small_run
from stream_helpers import same

from distill.cli.progress import describe
from distill.data import begun, waiting
from distill.data.dataset import open_dataset
from distill.data.order import Feed
from distill.data.waiting import Patience
from distill.errors import ConfigError, DataError
from distill.stream_config import DEFAULT_WINDOW
from distill.training.run import resume
from distill.training.tracking import TrainProgress
from embedcache import fsio
from embedcache.cache import Cache
from embedcache.errors import CacheFormatError
from embedcache.testing import tiny_encoder

pytest_plugins = ["distill_fixtures"]

WINDOW = 48
SETTINGS: dict[str, Any] = {"held_out": 12, "epochs": 2, "batch_size": 16, "eval_every": 3, "lr": 0.01}


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_POLL_SECONDS", 0.02)
    monkeypatch.setattr(waiting, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(begun, "_POLL_SECONDS", 0.02)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Path:
    """A cache of ten shards in corpus order; not to be changed."""
    folder = tmp_path_factory.mktemp("many")
    return build_ten_shards(folder, teacher_folder)


def shards_in_corpus_order(cache: Path) -> list[Path]:
    opened = Cache(cache)
    (teacher,) = opened.teachers()
    store = opened.store(teacher.contract)
    places = {key: row for row, key in enumerate(opened.corpus().keys().tolist())}
    folder = opened.teacher_folder(teacher.contract) / "shards"
    ordered = sorted(store.shards, key=lambda shard: min(places[key] for key in shard.keys.tolist()))
    return [folder / f"{shard.name}.arrow" for shard in ordered]


class Arriving:
    """A copy of a cache into which shards come in the order in which a build commits them, when told to.

    Args:
        many: the cache.
        target: the copy's folder.
        at_first: shards that are there from the start.
    """

    def __init__(self, many: Path, target: Path, at_first: int) -> None:
        shutil.copytree(many, target, ignore=shutil.ignore_patterns("index", "tokens"))
        self.cache = target
        self._left = shards_in_corpus_order(target)[at_first:]
        shutil.rmtree(target / "derived" / "index")
        self._away = target.with_name(f"{target.name}-away")
        self._away.mkdir()
        for shard in self._left:
            shard.rename(self._away / shard.name)

    @property
    def missing(self) -> int:
        """Shards that have not come yet."""
        return len(self._left)

    def bring(self, shards: int) -> None:
        """Let so many more shards come."""
        for shard in self._left[:shards]:
            (self._away / shard.name).rename(shard)
        self._left = self._left[shards:]

    def at_every_step(self, progress: TrainProgress) -> None:
        """Let a window's shards come, and one more, after every step of training."""
        if progress.phase == "train":
            self.bring(4)


def test_vectors_that_come_later_give_the_same_student(many, tmp_path):
    settings = {**SETTINGS, "stream": {"wait": 1, "window": WINDOW}}
    told: list[TrainProgress] = []
    arriving = Arriving(many, tmp_path / "early", at_first=3)
    missing: list[int] = []

    def look(progress: TrainProgress) -> None:
        told.append(progress)
        if progress.phase == "train":
            missing.append(arriving.missing)
        arriving.at_every_step(progress)

    early = small_run(arriving.cache, tmp_path / "a", **settings, on_progress=look)
    # Training began while most vectors were missing.
    assert missing[0] == 7
    assert missing[-1] == 0
    late = small_run(many, tmp_path / "b", **settings)
    assert same(tmp_path / "a", tmp_path / "b")
    assert early.result.steps == late.result.steps
    assert early.result.best_score == late.result.best_score
    waits = [one for one in told if one.phase == "wait"]
    assert waits
    assert all(0 <= one.step < one.total == len(TEXTS) for one in waits)
    # Without waiting the same window is the same order; without a window it is another.
    small_run(many, tmp_path / "c", **SETTINGS, window=WINDOW)
    small_run(many, tmp_path / "d", **SETTINGS)
    assert same(tmp_path / "b", tmp_path / "c")
    assert not same(tmp_path / "b", tmp_path / "d")


@pytest.mark.parametrize(
    "more",
    [
        {"loss": "ckd", "queue": 20},
        {"loss": "seed", "queue": 10, "views": None},
        {"target_dim": 5},
    ],
    ids=["ckd", "full queue", "projection"],
)
def test_what_is_looked_at_before_training_is_of_the_first_window(many, tmp_path, more):
    settings = {**SETTINGS, "epochs": 1, "wait_for_build": 1, "window": WINDOW, **more}
    if more.get("loss") == "seed":
        settings.pop("views")
        many = _with_view(many, tmp_path)
    arriving = Arriving(many, tmp_path / "early", at_first=3)
    small_run(arriving.cache, tmp_path / "a", **settings, on_progress=arriving.at_every_step)
    assert not arriving.missing
    small_run(many, tmp_path / "b", **settings)
    assert same(tmp_path / "a", tmp_path / "b")


def _with_view(many: Path, tmp_path: Path) -> Path:
    """Return a copy of a cache with a view of its corpus."""
    folder = tmp_path / "viewed"
    shutil.copytree(many, folder)
    build(many.parent / "texts.txt", _model(many), folder, shard_rows=16, views=["delete-words"])
    return folder


def _model(cache: Path) -> Path:
    opened = Cache(cache)
    return Path(opened.model_source(opened.teacher()))


def _texts(file: Path, texts: Sequence[str]) -> Path:
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return file


def test_a_run_ends_where_its_steps_do_however_much_is_missing(many, tmp_path):
    cache = Arriving(many, tmp_path / "early", at_first=6).cache
    run = small_run(cache, tmp_path / "a", **SETTINGS, max_steps=3, wait_for_build=5, window=WINDOW)
    assert run.result.steps == 3


def test_vectors_that_never_come_are_told_of(many, tmp_path):
    cache = Arriving(many, tmp_path / "early", at_first=4).cache
    with pytest.raises(DataError, match=r"96 of teacher 'tiny'\), and none came for 0.01 minutes"):
        small_run(cache, tmp_path / "a", **SETTINGS, wait_for_build=0.01, window=WINDOW)


def test_a_run_that_gave_up_goes_on_when_the_build_does(many, tmp_path):
    settings = {**SETTINGS, "checkpoint_every": 1, "wait_for_build": 0.01, "window": WINDOW}
    arriving = Arriving(many, tmp_path / "early", at_first=6)
    with pytest.raises(DataError, match="go on with --resume"):
        small_run(arriving.cache, tmp_path / "a", **settings)
    arriving.bring(4)
    run = resume(tmp_path / "a")
    assert run.resumed > 0
    small_run(many, tmp_path / "b", **settings)
    assert same(tmp_path / "a", tmp_path / "b")


def test_the_rows_are_those_of_a_whole_cache(many, tmp_path):
    arriving = Arriving(many, tmp_path / "early", at_first=1)
    feed = Feed(window=WINDOW, patience=Patience(1, lambda there, rows: arriving.bring(1)))
    found = open_dataset(Cache(arriving.cache), held_out=12, feed=feed, where="row % 5 > 0")
    whole = open_dataset(Cache(many), held_out=12, feed=Feed(window=WINDOW), where="row % 5 > 0")
    assert found.rows.tolist() == whole.rows.tolist()
    assert found.held_out.tolist() == whole.held_out.tolist()
    assert max(found.held_out) < WINDOW * 5 / 4 + 1
    assert (found.targets_of(found.held_out) == whole.targets_of(whole.held_out)).all()
    assert arriving.missing > 4
    indices = np.random.default_rng(0).permutation(len(whole.rows))
    assert (found.targets.gather(indices) == whole.targets.gather(indices)).all()
    assert not arriving.missing


def test_a_run_waits_for_a_build_that_has_only_just_been_started(many, tmp_path):
    cache = tmp_path / "cache"
    told: list[str] = []

    def comes_next(progress: TrainProgress) -> None:
        if progress.phase != "wait" or not progress.text:
            return
        told.append(describe(progress, 0.0))
        if not cache.exists():
            cache.mkdir()
            shutil.copy(many / "cache.json", cache)
        elif not (cache / "corpora").exists():
            shutil.copytree(many / "corpora", cache / "corpora")
        else:
            shutil.copytree(many / "teachers", cache / "teachers")

    settings = {**SETTINGS, "epochs": 1, "wait_for_build": 1, "window": WINDOW}
    # Made of a model that the cache does not name, as what is derived is not copied.
    teacher = str(_model(many))
    small_run(cache, tmp_path / "a", **settings, teacher_model=teacher, on_progress=comes_next)
    assert told == [
        f"waiting for the build: the cache {cache}",
        f"waiting for the build: a corpus in {cache} (it holds none)",
        f"waiting for the build: a teacher in {cache} (it holds none)",
    ]
    small_run(many, tmp_path / "b", **settings)
    assert same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("name", ["texts", "as-it-was-called-elsewhere"])
def test_a_digest_tells_the_corpus_that_is_waited_for(many, tmp_path, name):
    asked = f"{name}@{Cache(many).corpus().info.digest[:12]}"
    settings = {**SETTINGS, "epochs": 1, "checkpoint_every": 1, "window": WINDOW}
    cache = Arriving(many, tmp_path / "early", at_first=9).cache
    away = (cache / "corpora" / "texts").rename(tmp_path / "texts")
    other = build(_texts(tmp_path / "texts.txt", TEXTS[:9]), _model(many), tmp_path / "other").corpus()
    shutil.copytree(other.folder, cache / "corpora" / "texts")
    told: list[str] = []

    def comes_next(progress: TrainProgress) -> None:
        if progress.phase == "wait" and progress.text:
            told.append(progress.text)
            # Another of its name is there, and is not it.
            (cache / "corpora" / "texts").rename(tmp_path / "not it")
            away.rename(cache / "corpora" / "texts")

    of_this = {"corpus": asked, "teacher_model": _model(many)}
    with pytest.raises(DataError, match="go on with --resume"):
        small_run(cache, tmp_path / "a", **settings, **of_this, wait_for_build=0.01, on_progress=comes_next)
    assert told == [f"the build: the corpus '{asked}' in {cache} (it holds texts)"]
    shutil.copytree(many, cache, dirs_exist_ok=True)
    assert resume(tmp_path / "a").config.corpus == asked
    small_run(many, tmp_path / "b", **settings)
    assert same(tmp_path / "a", tmp_path / "b")


def test_a_build_that_never_starts_is_told_of(many, tmp_path):
    for cache, more, missing in (
        (tmp_path / "nothing", {}, "the cache .*nothing"),
        (many, {"corpus": "other"}, r"the corpus 'other' in .* \(it holds texts\)"),
        (many, {"corpus": "texts@000000"}, r"the corpus 'texts@000000' in .* \(it holds texts\)"),
        (many, {"teacher": "other"}, r"the teacher 'other' in .* \(it holds tiny\)"),
    ):
        with pytest.raises(DataError, match=f"waited 0.001 minutes for {missing}.*embedcache build"):
            small_run(cache, tmp_path / "a", **SETTINGS, wait_for_build=0.001, **more)
        assert not (tmp_path / "a").exists()
    # What can never become a cache is not waited for.
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").write_text("x", encoding="utf-8")
    with pytest.raises(CacheFormatError, match="is no cache"):
        small_run(tmp_path / "full", tmp_path / "a", **SETTINGS, wait_for_build=5)


def test_a_missing_build_is_refused_without_waiting(many, tmp_path):
    cache = Arriving(many, tmp_path / "early", at_first=9).cache
    with pytest.raises(DataError, match="have no vector of teacher"):
        small_run(cache, tmp_path / "a", **SETTINGS)


def test_what_needs_all_vectors_at_once_is_refused(many, tmp_path):
    with pytest.raises(ConfigError, match=r"training\.where: 'truncated' is known once"):
        small_run(many, tmp_path / "a", **SETTINGS, wait_for_build=1, where="NOT truncated")
    with pytest.raises(ConfigError, match=r"stream\.wait: the loss kd"):
        small_run(many, tmp_path / "a", **SETTINGS, wait_for_build=1, loss="kd")
    with pytest.raises(DataError, match="the first window has 20 rows, and 30 are needed"):
        small_run(many, tmp_path / "a", **{**SETTINGS, "held_out": 30}, window=20)
    with pytest.raises(ConfigError, match=r"stream\.mirror and stream\.limit: only for a remote"):
        small_run(many, tmp_path / "a", **SETTINGS, cache_limit="1GB", mirror="m")
    with pytest.raises(ConfigError, match="not both"):
        small_run("s3://bucket/x", tmp_path / "a", **SETTINGS, cache_limit=10**9, window=5)
    with pytest.raises(ConfigError, match="a remote: leave --wait-for-build out"):
        small_run("s3://bucket/x", tmp_path / "a", **SETTINGS, wait_for_build=1)


def test_the_window_of_a_build_is_filled_in(many, tmp_path):
    run = small_run(many, tmp_path / "a", **{**SETTINGS, "epochs": 1}, wait_for_build=1)
    assert run.config.stream.window == DEFAULT_WINDOW


def _build_slowly(corpus: Path, teacher: Path, cache: Path, store: str) -> None:
    def slowly(step: str, path: Path) -> None:
        if step == "lmdb-committed" or (step == "renamed" and path.parent.name == "shards"):
            time.sleep(1.0)

    fsio.on_write_step = slowly
    build(corpus, teacher, cache, shard_rows=16, store=store)


@pytest.mark.slow
@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_a_run_beside_a_build_in_another_process(tmp_path, store):
    teacher = tiny_encoder(tmp_path / "teacher" / "tiny", layers=4)
    corpus = tmp_path / "texts.txt"
    corpus.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    cache = tmp_path / "cache"
    child = multiprocessing.get_context("spawn").Process(
        target=_build_slowly, args=(corpus, teacher, cache, store)
    )
    child.start()
    deadline = time.monotonic() + 120
    while not list(cache.glob("teachers/*/names/*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    settings = {**SETTINGS, "wait_for_build": 1, "window": WINDOW}
    told: list[TrainProgress] = []
    small_run(cache, tmp_path / "a", **settings, on_progress=told.append)
    child.join(60)
    assert child.exitcode == 0
    assert any(one.phase == "wait" for one in told)
    small_run(cache, tmp_path / "b", **settings)
    assert same(tmp_path / "a", tmp_path / "b")
