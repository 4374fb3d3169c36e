"""Whose vectors a run from a remote trains on: a sample before the first step, and what is left out."""

from __future__ import annotations

import re
import shutil
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from distill_helpers import TEXTS, build, small_run
from share_helpers import make_key
from stream_helpers import on_disk, same, shard_size

import embedcache
from distill.cli.main import main
from distill.errors import ConfigError, DataError
from distill.training.run import resume
from distill.training.tracking import TrainProgress
from embedcache.cache import Cache
from embedcache.check.live import Computing
from embedcache.errors import RemoteError
from embedcache.housekeeping import remove_teacher
from embedcache.sample_notes import bad_shards
from embedcache.share import PushChoice, list_remote, pull, push
from embedcache.teacher.encode import Encoder
from embedcache.teacher.encoded import EncodedTexts
from embedcache.teacher.load import load_teacher

pytest_plugins = ["distill_fixtures"]

SETTINGS: dict[str, Any] = {"held_out": 12, "epochs": 1, "batch_size": 16, "eval_every": 3, "lr": 0.01}


class Stop(Exception):  # noqa: N818 - what stops a run here is no error
    """Stands for whatever ends a process."""


class Turned(Encoder):
    """Says that it is the teacher, and gives other vectors."""

    def encode_windows(self, *arguments: Any) -> Generator[EncodedTexts, None, None]:
        for encoded in super().encode_windows(*arguments):
            yield replace(encoded, vectors=encoded.vectors[:, ::-1].copy())


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Path:
    """A cache of ten shards, stored as float16."""
    folder = tmp_path_factory.mktemp("honest")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return build(
        folder / "texts.txt", teacher_folder, folder / "cache", shard_rows=16, codec="float16"
    ).folder


@pytest.fixture(scope="module")
def evil(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Path:
    """A cache of the same texts with other vectors, which are read first: they are stored as float32."""
    folder = tmp_path_factory.mktemp("evil")
    return evil_cache(folder, teacher_folder, TEXTS)


def evil_cache(folder: Path, teacher_folder: Path, texts: Sequence[str]) -> Path:
    source = folder / "texts.txt"
    source.write_text("\n".join(texts) + "\n", encoding="utf-8")
    teacher = load_teacher(teacher_folder, device="cpu")
    encoder = Turned(teacher, compute_dtype="float32")
    return embedcache.build(
        source, teacher=teacher, encoder=encoder, cache=folder / "cache", codec="float32", shard_rows=16
    ).folder


@pytest.fixture
def settings(teacher_folder: Path, tmp_path: Path) -> dict[str, Any]:
    return {**SETTINGS, "teacher_model": str(teacher_folder), "mirror": str(tmp_path / "mirror")}


@pytest.fixture
def encoders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The teachers that samples were compared with, by name."""
    names: list[str] = []
    make = Computing.encoder

    def counted(computing: Computing, contract: Any, **options: Any) -> Encoder:
        names.append(options["name"])
        # As weights do that a model's file lacks.
        torch.rand(1)
        return make(computing, contract, **options)

    monkeypatch.setattr(Computing, "encoder", counted)
    return names


def stop_at(step: int):
    def look(progress: TrainProgress) -> None:
        if progress.phase == "train" and progress.step == step:
            raise Stop

    return look


def manifest_of(remote: Path, before: Sequence[str] = ()) -> str:
    """Return the name of the only manifest of a remote that is not among those ``before``."""
    (name,) = {path.stem for path in (remote / "manifests").glob("*.json")} - set(before)
    return name


def test_other_vectors_than_the_teachers_end_the_run_before_its_first_step(
    evil, settings, encoders, tmp_path
):
    remote = tmp_path / "remote"
    push(evil, str(remote))
    with pytest.raises(RemoteError, match=r"other vectors than the teacher's of 'tiny'.*nothing was trained"):
        small_run(remote, tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
    mirror = Cache(tmp_path / "mirror")
    contract_id = mirror.teacher().contract.id
    assert len(bad_shards(mirror, contract_id)) == 10
    # What is known is not compared again.
    with pytest.raises(RemoteError, match=r"an earlier pull or run found other vectors.*on 10 shards"):
        small_run(remote, tmp_path / "run", **settings)
    assert encoders == ["tiny"]
    small_run(remote, tmp_path / "run", **settings, no_sample_check=True)
    assert encoders == ["tiny"]
    # Once they are gone, what comes is compared anew.
    remove_teacher(Cache(tmp_path / "mirror"), "tiny")
    with pytest.raises(RemoteError, match="nothing was trained"):
        small_run(remote, tmp_path / "other", **settings)
    assert encoders == ["tiny", "tiny"]


def test_the_command_says_so_and_exits_with_one(evil, settings, tmp_path, monkeypatch, capsys):
    push(evil, str(tmp_path / "remote"))
    words = ["distill", "run", "--cache", str(tmp_path / "remote"), "--mirror", settings["mirror"]]
    words += ["--teacher-model", settings["teacher_model"], "--student", "layers:1", "--device", "cpu"]
    words += ["--held-out", "12", "--epochs", "1", "--batch-size", "16", "--out", str(tmp_path / "run")]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    told = capsys.readouterr().err
    assert "the remote has other vectors than the teacher's" in told
    assert all(remedy in told for remedy in ("--skip-manifest", "--require-signature", "--no-sample-check"))
    monkeypatch.setattr("sys.argv", [*words, "--no-sample-check"])
    main()
    assert (tmp_path / "run" / "best").is_dir()


def test_the_sample_is_taken_once_and_changes_nothing_about_the_student(honest, settings, encoders, tmp_path):
    remote = tmp_path / "remote"
    push(honest, str(remote))
    told: list[TrainProgress] = []
    small_run(remote, tmp_path / "a", **settings, on_progress=told.append)
    assert encoders == ["tiny"]
    small_run(remote, tmp_path / "b", **settings)
    assert encoders == ["tiny"]
    (compared,) = [progress.text for progress in told if progress.text.startswith("sample of")]
    assert compared.startswith("sample of tiny: 32 texts compared: ok")
    # Where the mirror is and what came into it is told, too.
    notes = [progress.text for progress in told if progress.phase == "note"]
    assert notes[0] == f"what comes from {remote} is kept in the mirror {tmp_path / 'mirror'}"
    assert re.fullmatch(rf"[\d.]+[kM]?B came from {remote} into the mirror {tmp_path / 'mirror'}", notes[-1])
    small_run(remote, tmp_path / "c", **{**settings, "mirror": str(tmp_path / "other")}, no_sample_check=True)
    assert encoders == ["tiny"]
    assert same(tmp_path / "a", tmp_path / "c")
    # A pull into the mirror knows what was compared.
    assert pull(tmp_path / "mirror", str(remote)).samples == ()


def test_what_a_pull_has_compared_is_not_compared_again(honest, settings, encoders, teacher_folder, tmp_path):
    remote = tmp_path / "remote"
    push(honest, str(remote))
    pull(tmp_path / "mirror", str(remote), computing=Computing(str(teacher_folder)))
    assert encoders == ["tiny"]
    small_run(remote, tmp_path / "run", **settings)
    assert encoders == ["tiny"]


def test_shards_that_were_pushed_since_are_compared(honest, evil, settings, tmp_path):
    remote = tmp_path / "remote"
    push(honest, str(remote))
    small_run(remote, tmp_path / "a", **settings)
    push(evil, str(remote))
    with pytest.raises(RemoteError, match="nothing was trained"):
        small_run(remote, tmp_path / "b", **settings)


def test_one_bad_shard_of_ten_is_found(honest, settings, teacher_folder, tmp_path):
    remote = tmp_path / "remote"
    push(honest, str(remote))
    push(evil_cache(tmp_path, teacher_folder, TEXTS[32:48]), str(remote), PushChoice(corpora=[], text=False))
    with pytest.raises(RemoteError, match="nothing was trained"):
        small_run(remote, tmp_path / "a", **settings)
    mirror = Cache(tmp_path / "mirror")
    # The good ones that came with it are not held to be bad.
    assert len(bad_shards(mirror, mirror.teacher().contract.id)) == 1


def test_what_came_bad_from_one_remote_is_bad_from_every_other(evil, settings, encoders, tmp_path):
    for name in ("remote", "other"):
        push(evil, str(tmp_path / name))
    with pytest.raises(RemoteError, match="nothing was trained"):
        small_run(tmp_path / "remote", tmp_path / "run", **settings)
    with pytest.raises(RemoteError, match=r"an earlier pull or run found other vectors.*on 10 shards"):
        small_run(tmp_path / "other", tmp_path / "run", **settings)
    assert encoders == ["tiny"]


def test_a_bad_shard_of_a_later_window_ends_the_run_before_it_is_trained_on(
    honest, settings, encoders, teacher_folder, tmp_path
):
    remote = tmp_path / "remote"
    push(honest, str(remote))
    push(evil_cache(tmp_path, teacher_folder, TEXTS[64:80]), str(remote), PushChoice(corpora=[], text=False))
    settings = {**settings, "window": 32, "dropout": 0.2}
    steps: list[int] = []

    def look(progress: TrainProgress) -> None:
        if progress.phase == "train":
            steps.append(progress.step)

    with pytest.raises(
        RemoteError, match=r"nothing was trained on them.*--resume .* --no-sample-check' goes on"
    ):
        small_run(remote, tmp_path / "a", **settings, on_progress=look)
    # Two windows of 32 rows, 12 of which are held out, in batches of 16; the next one has rows of the third.
    assert steps == [1, 2, 3]
    assert encoders == ["tiny"] * 3
    mirror = Cache(tmp_path / "mirror")
    assert len(bad_shards(mirror, mirror.teacher().contract.id)) == 1
    with pytest.raises(
        RemoteError, match=r"an earlier pull or run found other vectors.*'distill run --resume"
    ):
        resume(tmp_path / "a")
    assert resume(tmp_path / "a", no_sample_check=True).resumed == 3
    assert encoders == ["tiny"] * 3
    other = {**settings, "mirror": str(tmp_path / "other")}
    small_run(remote, tmp_path / "b", **other, no_sample_check=True)
    assert same(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("windows", [{"window": 32}, {"cache_limit": 4}])
def test_every_window_is_compared_once_and_that_changes_nothing_about_the_student(
    honest, settings, encoders, tmp_path, windows
):
    remote = tmp_path / "remote"
    push(honest, str(remote))
    if "cache_limit" in windows:
        windows = {"cache_limit": windows["cache_limit"] * shard_size(honest, "tiny")}
    settings = {**settings, **windows, "epochs": 2, "dropout": 0.2}
    small_run(remote, tmp_path / "a", **settings)
    # Ten shards in five windows; in the second epoch nothing is new.
    assert encoders == ["tiny"] * 5
    small_run(remote, tmp_path / "b", **{**settings, "mirror": str(tmp_path / "other")}, no_sample_check=True)
    assert encoders == ["tiny"] * 5
    assert same(tmp_path / "a", tmp_path / "b")


def test_of_several_teachers_each_is_compared(evil, settings, encoders, second_folder, tmp_path):
    both = tmp_path / "both"
    shutil.copytree(evil, both)
    build(evil.parent / "texts.txt", second_folder, both, shard_rows=32)
    remote = tmp_path / "remote"
    push(both, str(remote))
    settings = {**settings, "teacher": ["other", "tiny"], "teacher_model": str(second_folder)}
    # The folder that a stranger's note names is not looked in: of that teacher nothing is compared.
    told: list[TrainProgress] = []
    small_run(remote, tmp_path / "run", **settings, on_progress=told.append)
    assert encoders == ["other"]
    compared, note = [progress.text for progress in told if progress.text.startswith("sample of")]
    assert compared.startswith("sample of other: 32 texts compared: ok")
    assert note.startswith("sample of tiny: not compared: the model ")


def test_that_the_model_is_not_here_is_said_once(honest, settings, encoders, second_folder, tmp_path):
    remote = tmp_path / "remote"
    push(honest, str(remote))
    settings = {**settings, "teacher_model": None, "student": str(second_folder)}
    told: list[TrainProgress] = []
    small_run(remote, tmp_path / "a", **settings, on_progress=told.append)
    small_run(remote, tmp_path / "b", **settings, on_progress=told.append)
    (note,) = [progress.text for progress in told if progress.text.startswith("sample of")]
    assert "is not on this machine; a run with --teacher-model FOLDER compares" in note
    assert "\n" not in note
    assert encoders == []


def test_a_limit_fetches_no_more_for_the_sample(honest, settings, encoders, tmp_path):
    remote = tmp_path / "remote"
    push(honest, str(remote))
    limit = 4 * shard_size(honest, "tiny")
    with pytest.raises(Stop):
        small_run(remote, tmp_path / "a", **settings, cache_limit=limit, on_progress=stop_at(1))
    assert encoders == ["tiny"]
    assert on_disk(tmp_path / "mirror") <= limit


def test_only_what_the_key_has_signed_is_trained_on(honest, evil, settings, tmp_path):
    pytest.importorskip("cryptography", reason="needs the extra sign")
    remote = tmp_path / "remote"
    private, public = make_key(tmp_path, "ann")
    push(honest, str(remote), sign=private)
    push(evil, str(remote))
    with pytest.raises(RemoteError, match="nothing was trained"):
        small_run(remote, tmp_path / "a", **settings)
    small_run(remote, tmp_path / "a", **settings, require_signature=public)
    small_run(honest, tmp_path / "b", **{**settings, "mirror": None})
    assert same(tmp_path / "a", tmp_path / "b")


def test_pushes_that_are_left_out_are_not_trained_on(honest, evil, settings, tmp_path):
    remote = tmp_path / "remote"
    push(honest, str(remote))
    before = manifest_of(remote)
    push(evil, str(remote))
    with pytest.raises(RemoteError, match="nothing was trained"):
        small_run(remote, tmp_path / "a", **settings)
    small_run(remote, tmp_path / "a", **settings, skip_manifests=[manifest_of(remote, [before])[:8]])
    small_run(honest, tmp_path / "b", **{**settings, "mirror": None})
    assert same(tmp_path / "a", tmp_path / "b")


def test_what_an_earlier_run_has_fetched_of_them_is_not_read_either(honest, evil, settings, tmp_path):
    pytest.importorskip("cryptography", reason="needs the extra sign")
    remote, less = tmp_path / "remote", tmp_path / "less"
    private, public = make_key(tmp_path, "ann")
    shutil.copytree(honest, less)
    next(less.glob("teachers/*/shards/*.arrow")).unlink()
    push(less, str(remote), sign=private)
    push(evil, str(remote))
    small_run(remote, tmp_path / "a", **settings, no_sample_check=True)
    with pytest.raises(DataError, match="16 of 160 texts of corpus 'texts' have no vector"):
        small_run(remote, tmp_path / "b", **settings, require_signature=public)


def test_a_resumed_run_keeps_to_what_was_signed(honest, evil, settings, tmp_path):
    pytest.importorskip("cryptography", reason="needs the extra sign")
    remote = tmp_path / "remote"
    private, public = make_key(tmp_path, "ann")
    push(honest, str(remote), sign=private)
    settings = {**settings, "require_signature": public, "checkpoint_every": 1}
    with pytest.raises(Stop):
        small_run(remote, tmp_path / "a", **settings, on_progress=stop_at(4))
    push(evil, str(remote))
    run = resume(tmp_path / "a")
    assert run.resumed > 0
    assert run.config.stream.require_signature == str(public)
    small_run(remote, tmp_path / "b", **settings)
    assert same(tmp_path / "a", tmp_path / "b")


def test_a_resumed_run_leaves_the_same_pushes_out_even_those_that_were_deleted_since(
    honest, evil, settings, tmp_path
):
    remote = tmp_path / "remote"
    push(honest, str(remote))
    before = manifest_of(remote)
    push(evil, str(remote))
    skipped = manifest_of(remote, [before])
    settings = {**settings, "skip_manifests": [skipped], "checkpoint_every": 1}
    for name in ("a", "b"):
        with pytest.raises(Stop):
            small_run(remote, tmp_path / name, **settings, on_progress=stop_at(4))
    assert resume(tmp_path / "a").config.stream.skip_manifests == [skipped]
    (remote / "manifests" / f"{skipped}.json").unlink()
    assert len(list_remote(str(remote)).pushes) == 1
    assert resume(tmp_path / "b").resumed > 0
    assert same(tmp_path / "a", tmp_path / "b")


def test_a_resumed_run_takes_no_sample_where_none_was_asked_for(evil, settings, encoders, tmp_path):
    remote = tmp_path / "remote"
    push(evil, str(remote))
    settings = {**settings, "no_sample_check": True, "checkpoint_every": 1}
    with pytest.raises(Stop):
        small_run(remote, tmp_path / "a", **settings, on_progress=stop_at(4))
    assert resume(tmp_path / "a").resumed > 0
    assert encoders == []


@pytest.mark.parametrize(
    "setting",
    [
        {"require_signature": "key.pub"},
        {"skip_manifests": ["abcdef"]},
        {"no_sample_check": True},
        {"max_bytes": 10},
    ],
)
def test_what_is_said_of_a_remote_is_refused_with_a_cache_of_this_machine(honest, tmp_path, setting):
    (key,) = setting
    with pytest.raises(ConfigError, match=rf"stream\.{key}: only for a remote"):
        small_run(honest, tmp_path / "run", **SETTINGS, **setting)
