"""The record of a run: its content, and how runs are found and distinguished."""

from __future__ import annotations

import pytest

from distill.config.models import RunConfig
from distill.errors import DataError
from distill.record import (
    CorpusRecord,
    RunRecord,
    StartRecord,
    find_runs,
    read_record,
    setting_of,
)


def record(**fields) -> RunRecord:
    corpus = CorpusRecord(name="news", rows=100, digest="c")
    facts = {"identity": "i", "seeds": [0], "setting": "s", "corpus": corpus, "rows": 98}
    return RunRecord(**facts, student="layers:3", parameters=1000, loss="mse", **fields)


def test_a_record_reads_back_as_it_was_written(tmp_path):
    start = StartRecord(spec="runs/a", run="/runs/a", contract_id="k", setting="s", seeds=[0])
    written = record(kind="finetune", start=start, stage1=record())
    written.write(tmp_path)
    assert read_record(tmp_path) == written
    assert not written.is_finished


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", '{"version": 1}'])
def test_other_files_of_this_name_are_not_records(tmp_path, content):
    if content is not None:
        (tmp_path / "run.json").write_text(content)
    assert read_record(tmp_path) is None


def test_runs_are_found_below_a_folder_each_once(tmp_path):
    for name in ("b", "sweep/runs/a"):
        (tmp_path / name / "best").mkdir(parents=True)
        record().write(tmp_path / name)
    a, b = tmp_path / "sweep" / "runs" / "a", tmp_path / "b"
    assert find_runs(tmp_path) == [b, a]
    assert find_runs([a, b / "best", tmp_path]) == [a, b]
    for nothing in (tmp_path / "gone", b / "best" / ".."):
        (b / "run.json").unlink(missing_ok=True)
        with pytest.raises(DataError, match="run"):
            find_runs([nothing])


@pytest.mark.parametrize(
    ("change", "alike"),
    [
        ({"seed": 7}, True),
        ({"cache": "elsewhere", "out": "there", "overwrite": True}, True),
        ({"training": {"device": "cpu", "threads": 2, "checkpoint_every": 5}}, True),
        ({"training": {"epochs": 2}}, False),
        ({"loss": {"name": "ckd"}}, False),
        ({"student": {"spec": "layers:2"}}, False),
    ],
)
def test_only_settings_that_change_the_result_change_identity_and_setting(change, alike):
    plain = RunConfig(cache="cache")
    other = RunConfig(**{"cache": "cache", **change})
    facts = {"corpus": "c", "dev": None}
    assert (plain.identity_digest() == other.identity_digest()) is alike
    assert (setting_of(plain, facts) == setting_of(other, facts)) is alike


def test_the_setting_depends_on_the_data_and_on_the_stage_before():
    config = RunConfig(cache="cache")
    start = StartRecord(spec="m", run=None, contract_id="k")
    stages = [None, start, start.model_copy(update={"setting": "s", "seeds": [3]})]
    digests = {setting_of(config, {"corpus": corpus}, stage) for corpus in "cd" for stage in stages}
    assert len(digests) == 6
    assert record().model_copy(update={"seeds": [3, 1]}).seed == "3+1"
