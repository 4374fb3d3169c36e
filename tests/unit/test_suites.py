"""``distill suites``, and whether what it lists is what the suites read."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from distill.cli.main import cli
from distill.errors import DataError
from distill.evaluation.suite_files import SUITE_FILES
from distill.evaluation.suites import SUITES
from distill.evaluation.tasks import NotThereError, Request


def listed(*words: str, **environment: str) -> str:
    found = CliRunner().invoke(cli, ["suites", *words], env=environment, catch_exceptions=False)
    assert found.exit_code == 0
    return found.stdout


def test_every_suite_is_listed_with_its_files():
    assert list(SUITE_FILES) == list(SUITES)
    facts = json.loads(listed("--json"))
    assert list(facts) == list(SUITES)
    assert facts["sts"]["sets"] == ["STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R"]
    assert {"file": "stsb_test.tsv", "columns": ["subset", "score", "sentence1", "sentence2"]}.items() <= (
        next(one for one in facts["sts"]["files"] if one["file"] == "stsb_test.tsv").items()
    )
    assert facts["fidelity"]["reads_sentences"]
    assert facts["fidelity"]["files"] == []
    assert facts["latency"]["on_request"]
    assert not facts["sts"]["on_request"]


def test_the_table_is_readable_at_80_columns():
    shown = listed(COLUMNS="80")
    assert max(map(len, shown.splitlines())) <= 80
    together = "".join(re.sub(r"[│\s]", "", shown))
    for name, files in SUITE_FILES.items():
        assert name in shown
        for file in files:
            assert f"{file.stem}.tsv" in together
            assert all(column in together for column in file.columns)


@pytest.mark.parametrize("suite", [name for name, files in SUITE_FILES.items() if files])
def test_a_suite_looks_for_the_files_that_are_listed(suite, tmp_path):
    with pytest.raises(NotThereError):
        SUITES[suite].read(Request((), tmp_path))
    # Each file without its columns is looked at by the suite, which names those that are listed.
    for file in SUITE_FILES[suite]:
        folder = tmp_path / file.stem
        folder.mkdir()
        same_set = [one for one in SUITE_FILES[suite] if set(one.sets) & set(file.sets)]
        for one in same_set:
            stem = re.sub(r"LANG\d?|NAME", lambda found: {"LANG": "de"}.get(found[0], "x"), one.stem)
            stem = re.sub(r"captionsN", "captions2", stem)
            columns = [column for column in one.columns if one != file]
            (folder / f"{stem}.tsv").write_text("\t".join(columns or ["nothing"]) + "\n", encoding="utf-8")
        with pytest.raises(DataError) as refused:
            SUITES[suite].read(Request((), folder))
        wanted = [column for column in file.columns if column not in ("...", "captionN")]
        assert any(column in str(refused.value) for column in wanted), str(refused.value)
