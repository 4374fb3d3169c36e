from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Literal, get_args, get_origin

import click
import pytest
import yaml
from click.testing import CliRunner
from distill_helpers import HELD_OUT

from distill.cli.main import COMMANDS, cli, main
from distill.cli.progress import describe, train_progress
from distill.config.base import Key, keys
from distill.config.models import RunConfig
from distill.errors import ExportError, TrainingError
from distill.layout import describe_missing
from distill.losses.registry import get_loss, loss_names
from distill.training.tracking import TrainProgress

pytest_plugins = ["distill_fixtures"]

OPTIONS = [key for key in keys(RunConfig) if key.option is not None]


def sample(key: Key) -> tuple[list[str], object]:
    """Return words to type for an option, and the value they are to set."""
    if key.annotation is bool:
        return [key.option], True
    if get_origin(key.annotation) is Literal:
        value = next(one for one in get_args(key.annotation) if one != key.default)
        return [key.option, value], value
    if key.path == "teacher_weights":
        return [key.option, "1", "--teacher", "a", "--teacher", "b", key.option, "2"], [1.0, 2.0]
    if key.option == "--log-with":
        return [key.option, "wandb"], ["wandb"]
    if get_origin(key.annotation) is list:
        values = ["a", "b"]
        return [key.option, "a", key.option, "b"], values
    value = {int: 77, float: 0.375}.get(key.annotation, "something")
    return [key.option, "77" if key.metavar == "SIZE" else str(value)], 77 if key.metavar == "SIZE" else value


def run_main(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["distill", *map(str, arguments)])
    try:
        main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def flat(tree: dict, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found


def dumped(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(cli, ["run", *arguments, "--dump-config"], catch_exceptions=False)
    assert result.exit_code == 0
    return flat(yaml.safe_load(result.stdout))


@pytest.mark.parametrize("key", OPTIONS, ids=lambda key: key.option)
def test_every_option_changes_its_key_and_no_other(key):
    words, value = sample(key)
    before, after = dumped("--cache", "c"), dumped("--cache", "c", *words)
    assert before[key.path] != value
    others = {"teacher": ["a", "b"]} if key.path == "teacher_weights" else {}
    assert after == {**before, **others, key.path: value}


def test_flags_that_are_not_given_leave_the_file_as_it_is(tmp_path):
    (tmp_path / "run.yaml").write_text("cache: c\nteacher: [x, y]\nteacher_weights: [1, 2]\n")
    found = dumped("--config", str(tmp_path / "run.yaml"))
    assert (found["teacher"], found["teacher_weights"]) == (["x", "y"], [1.0, 2.0])


def test_a_dumped_configuration_is_a_configuration(tmp_path):
    first = CliRunner().invoke(cli, ["run", "--cache", "c", "--lr", "3e-7", "--loss", "ckd", "--dump-config"])
    (tmp_path / "run.yaml").write_text(first.stdout)
    again = CliRunner().invoke(cli, ["run", "--config", str(tmp_path / "run.yaml"), "--dump-config"])
    assert again.stdout == first.stdout


def test_dumping_trains_nothing(built_cache, tmp_path, monkeypatch, capsys):
    def refuse(config, on_progress):
        raise AssertionError("a run was started")

    monkeypatch.setattr("distill.training.train.train", refuse)
    monkeypatch.chdir(tmp_path)
    code, out, err = run_main(monkeypatch, capsys, "run", "--cache", built_cache, "--dump-config")
    assert (code, err) == (0, "")
    assert yaml.safe_load(out)["cache"] == str(built_cache)
    assert list(tmp_path.iterdir()) == []


def commands() -> list[tuple[str, click.Command]]:
    return [("distill", cli), *cli.commands.items()]


@pytest.mark.parametrize(("name", "command"), commands())
def test_every_command_and_option_has_help(name, command):
    assert command.help, name
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, (name, parameter.name)
            assert len(parameter.help) > 5, (name, parameter.name)
    arguments = [] if name == "distill" else [name]
    shown = CliRunner().invoke(cli, [*arguments, "--help"])
    assert shown.exit_code == 0
    assert shown.stdout.startswith("Usage:")
    assert name in ("distill", *COMMANDS)
    assert all(summary for _, summary in COMMANDS.values())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], "cache: missing; give --cache"),
        (["run", "--cache", "nowhere"], "nowhere"),
        (["run", "--cache", "c", "--set", "training.epoch=3"], "did you mean training.epochs?"),
        (["run", "--cache", "CACHE", "--loss", "kl"], "--loss: "),
        (["run", "--cache", "c", "--lr", "nan"], "--lr: "),
        (["run", "--config", "nowhere.yaml"], "no configuration file"),
        (["run", "--cache", "CACHE", "--student", "layers:9"], "the teacher has 4 layers"),
        (["run", "--cache", "CACHE", "--held-out", "159"], "159 held out leave too few"),
        (["run", "--cache", "c", "--teacher", "a", "--teacher", "a"], "teacher: a more than once"),
        (["run", "--cache", "c", "--teacher", "a", "--teacher-weight", "2"], "--teacher-weight: 1 for 1"),
        (["run", "--cache", "CACHE", "--target-dim", "17"], "--target-dim: 17"),
        (["run", "--cache", "CACHE", "--where", "row < 0"], "no row of the 160"),
        (
            ["run", "--cache", "CACHE", "--loss", "congen"],
            "takes two views of each row",
        ),
        (
            ["run", "--cache", "CACHE", "--view", "crop"],
            "no view 'crop'",
        ),
        (["run", "--cache", "CACHE", "--view", "original", "--view", "original"], "each view once"),
        (
            ["run", "--cache", "CACHE", "--loss", "seed", "--set", "loss.queue=500"],
            "loss.queue: 500 teacher vectors",
        ),
        (["run", "--cache", "CACHE", "--loss", "ckd", "--set", "loss.queue=158"], "give at most 157"),
        (
            ["run", "--cache", "CACHE", "--loss", "mse", "--set", "loss.tau=0.1"],
            "loss.tau: the loss mse takes no",
        ),
        (["run", "--cache", "CACHE", "--drop-head"], "--drop-head: no head was added to this"),
        (["run", "--cache", "CACHE", "--warmup", "1000"], "never reach the peak learning rate"),
        (
            ["run", "--cache", "CACHE", "--held-out", "0", "--patience-epochs", "1"],
            "no scores to wait for",
        ),
        (
            ["run", "--cache", "CACHE", "--held-out", "0", "--set", "evaluation.patience_epochs=1"],
            "no scores to wait for",
        ),
        (["run", "--resume", "nowhere"], "nowhere holds no run"),
        (
            ["run", "--cache", "CACHE", "--mirror", "m", "--cache-limit", "1GB"],
            "only for a remote, and the cache",
        ),
        (
            ["run", "--cache", "CACHE", "--require-signature", "k.pub"],
            "only for a remote",
        ),
        (["run", "--cache", "CACHE", "--where", "row < 1"], "1 of the 160 rows of corpus"),
        (["run", "--cache", "CACHE", "--where", "row < 1"], "expected one batch of 128 at least"),
    ],
)
def test_what_the_user_can_mend_is_one_line_and_code_two(
    built_cache, tmp_path, monkeypatch, capsys, arguments, told
):
    monkeypatch.chdir(tmp_path)
    filled = [str(built_cache) if argument == "CACHE" else argument for argument in arguments]
    code, out, err = run_main(monkeypatch, capsys, *filled)
    assert (code, out) == (2, "")
    assert err.startswith("distill run: ")
    assert told in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_setting_that_is_refused_says_which_recipe_or_file_set_it(
    built_cache, tmp_path, monkeypatch, capsys
):
    def told(*arguments: object) -> str:
        code, _, err = run_main(monkeypatch, capsys, "run", "--cache", built_cache, *arguments)
        assert (code, err.count("\n")) == (2, 1)
        return err

    recipe = ("--recipe", "distilcse/bert-base-ckd")
    file = tmp_path / "a.yaml"
    file.write_text("loss: {name: seed, queue: 5000}\n")
    assert "loss.queue (set by recipe distilcse/bert-base-ckd): 65536" in told(*recipe)
    assert f"loss.queue (set by {file}): 5000" in told("--config", file)
    # A typed setting wins over both, and needs no source.
    assert "loss.queue: 700" in told(*recipe, "--set", "loss.queue=700")


def test_what_was_not_typed_keeps_its_key(built_cache, tmp_path, monkeypatch, capsys):
    file = tmp_path / "a.yaml"
    file.write_text("evaluation: {data: some_test.tsv}\n")
    command = ("run", "--cache", built_cache, "--out", tmp_path / "run")
    for given in (("--config", file), ("--set", "evaluation.data=some_test.tsv")):
        _, _, err = run_main(monkeypatch, capsys, *command, *given)
        assert "some_test.tsv looks like a test set" in err
        assert "evaluation.data" in err
    _, _, err = run_main(monkeypatch, capsys, *command, "--config", file, "--dev", "other_test.tsv")
    assert "--dev: other_test.tsv looks like a test set" in err
    assert "evaluation.data" not in err
    Path(tmp_path / "run").write_text("a file")
    _, _, err = run_main(monkeypatch, capsys, *command)
    assert f"--out: {tmp_path / 'run'} is a file; give a folder" in err


def test_a_key_of_a_file_keeps_its_name_beside_other_options(built_cache, tmp_path, monkeypatch, capsys):
    file = tmp_path / "a.yaml"
    file.write_text("evaluation: {data: some_test.tsv}\n")
    command = ("run", "--cache", built_cache, "--out", tmp_path / "run", "--config", file)
    _, _, err = run_main(monkeypatch, capsys, *command, "--held-out", "20", "--lr", "1e-3")
    assert "evaluation.data" in err
    assert "--dev" not in err


def test_a_key_that_is_put_forward_is_one_that_set_takes(tmp_path, monkeypatch, capsys):
    for typed in (("--epochs", "0"), ("--epochs", "2")):
        command = ("run", "--cache", "c", *typed, "--set", "training.epoch=3")
        code, _, err = run_main(monkeypatch, capsys, *command)
        assert code == 2
        assert "training.epoch: unknown key, did you mean training.epochs?" in err
        # What is wrong with the option itself is told by its own name.
        assert ("--epochs: " in err) == (typed[1] == "0")


@pytest.mark.parametrize("arguments", [["run", "--epochs", "many"], ["run", "--nonsense"], ["nonsense"]])
def test_flags_that_make_no_sense_end_with_code_two(monkeypatch, capsys, arguments):
    code, out, err = run_main(monkeypatch, capsys, *arguments)
    command = "distill run" if arguments[0] == "run" else "distill"
    assert (code, out) == (2, "")
    assert err.startswith(f"{command}: ")
    assert err.endswith(f" (see '{command} --help')\n")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--lr", "1"], "leave out --lr"),
        (["--view", "crop", "--out", "there"], "leave out --out, --view"),
        (
            ["--config", "a.yaml", "--set", "seed=1", "--teacher-weight", "1"],
            "--teacher-weight, --config, --set",
        ),
        (["--log-with", "wandb", "--seed", "0"], "leave out --seed, --log-with"),
    ],
)
def test_a_resumed_run_takes_no_settings(monkeypatch, capsys, arguments, named):
    code, out, err = run_main(monkeypatch, capsys, "run", "--resume", "run", "--cache", "c", *arguments)
    assert (code, out) == (2, "")
    assert named in " ".join(err.split())


def failing(error: BaseException):
    def run_config(config, on_progress, *, recipe=None):
        raise error

    return run_config


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (TrainingError("the loss\nbecame nan"), 1, "distill run: the loss became nan\n"),
        (OSError(28, "No space left on device", "/full"), 1, "distill run: No space left on device (/full)"),
        (KeyboardInterrupt(), 130, "interrupted; whatever was stored is whole, run the same command again"),
        (
            KeyboardInterrupt("go on with 'x'"),
            130,
            "interrupted; whatever was stored is whole, go on with 'x'",
        ),
    ],
)
def test_failures_underneath_have_their_own_codes(monkeypatch, capsys, error, code, told):
    monkeypatch.setattr("distill.training.train.train", failing(error))
    found, out, err = run_main(monkeypatch, capsys, "run", "--cache", ".")
    assert (found, out) == (code, "")
    assert told in err
    assert "Traceback" not in err


def test_the_run_is_told_which_recipe_it_was_made_from(monkeypatch, capsys):
    told = []

    def run_config(config, on_progress, *, recipe=None):
        told.append((config.optimizer.lr, recipe))
        raise TrainingError("far enough")

    monkeypatch.setattr("distill.training.train.train", run_config)
    run_main(monkeypatch, capsys, "run", "--cache", ".", "--recipe", "distilcse/bert-base-kd")
    run_main(monkeypatch, capsys, "run", "--cache", ".")
    assert told == [(2e-4, "distilcse/bert-base-kd"), (None, None)]


def test_debug_shows_where_it_happened(monkeypatch, capsys):
    monkeypatch.setattr("distill.training.train.train", failing(TrainingError("a loss")))
    code, _, err = run_main(monkeypatch, capsys, "--debug", "run", "--cache", ".")
    assert code == 1
    assert "Traceback" in err
    assert err.endswith("distill run: a loss\n")


def quick(cache, out) -> list[object]:
    return [
        *(
            "run",
            "--cache",
            cache,
            "--student",
            "layers:1",
            "--epochs",
            1,
            "--batch-size",
            64,
            "--device",
            "cpu",
        ),
        *("--held-out", HELD_OUT, "--mixed-precision", "no", "--out", out),
    ]


def test_json_is_all_that_is_printed(built_cache, tmp_path, monkeypatch, capsys):
    code, out, err = run_main(monkeypatch, capsys, *quick(built_cache, tmp_path / "run"), "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["best"] == str(tmp_path / "run" / "best")
    assert facts["steps"] == facts["total_steps"] == 3
    assert 0 < facts["best_score"] <= 1
    assert "step 3/3" in err


def test_without_json_the_end_says_what_to_type_next(built_cache, tmp_path, monkeypatch, capsys):
    out_folder = tmp_path / "run"
    code, out, _ = run_main(monkeypatch, capsys, *quick(built_cache, out_folder))
    assert code == 0
    assert f'SentenceTransformer("{out_folder / "best"}")' in out
    assert f"distill eval {out_folder} --suite fidelity" in out
    assert "3 of 3" in out
    assert "rows, 1 epoch, batches of at most 64" in out
    assert "held-out" in out


def test_what_was_selected_is_told(built_cache, tmp_path, monkeypatch, capsys):
    arguments = [*quick(built_cache, tmp_path / "run"), "--where", "row >= 60"]
    code, out, err = run_main(monkeypatch, capsys, *arguments)
    assert code == 0
    assert "100 of 160 rows by --where" in out
    assert err.startswith("100 of 160 rows selected by --where\n")
    code, out, _ = run_main(monkeypatch, capsys, *arguments, "--overwrite", "--json")
    facts = json.loads(out)
    assert (code, facts["selected"], facts["rows"], facts["teachers"]) == (0, 100, 70, ["tiny"])


def test_an_interrupted_run_goes_on_by_its_folder(built_cache, tmp_path, monkeypatch, capsys):
    from distill.training.trainer import Trainer

    out_folder = tmp_path / "run"
    look = Trainer._report

    def interrupted(trainer, tracker):
        look(trainer, tracker)
        if trainer.step == 2:
            raise KeyboardInterrupt

    command = [*quick(built_cache, out_folder), "--checkpoint-every", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_report", interrupted)
        assert run_main(patch, capsys, *command)[0] == 130
    code, _, err = run_main(monkeypatch, capsys, *command)
    assert code == 2
    assert f"distill run --resume {out_folder}'" in err
    code, _, err = run_main(monkeypatch, capsys, "run", "--resume", out_folder, "--threads", 2, "--lr", 1)
    assert code == 2
    assert "leave out --lr (only --cache, --device, --threads may change)" in err
    code, out, err = run_main(monkeypatch, capsys, "run", "--resume", out_folder, "--json", "--threads", 2)
    facts = json.loads(out)
    assert (code, facts["resumed"], facts["steps"], facts["best"]) == (0, 1, 3, str(out_folder / "best"))
    assert "step 3/3 (resumed from 1)" in err
    written = yaml.safe_load((out_folder / "config.yaml").read_text(encoding="utf-8"))
    assert written["training"]["threads"] == 2


def test_only_the_first_of_several_processes_prints(built_cache, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("distill.training.distributed.is_first_process", lambda: False)
    assert run_main(monkeypatch, capsys, *quick(built_cache, tmp_path / "run")) == (0, "", "")


@pytest.mark.parametrize(("processes", "waits"), [({}, 0), ({"RANK": "0"}, 0), ({"RANK": "1"}, 1)])
def test_the_first_of_several_processes_tells_of_an_error(tmp_path, monkeypatch, capsys, processes, waits):
    """The others give it the time to: a launcher ends them as soon as it has gone."""
    monkeypatch.delenv("RANK", raising=False)
    for name, value in processes.items():
        monkeypatch.setenv(name, value)
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    for arguments in (["run", "--cache", tmp_path / "nowhere"], ["run", "--nonsense"]):
        slept.clear()
        code, _, err = run_main(monkeypatch, capsys, *arguments)
        assert code == 2
        assert err.count("\n") == 1
        assert [seconds >= 5 for seconds in slept] == [True] * waits


@pytest.mark.parametrize("kind", ["losses", "recipes", "suites", "students"])
def test_lists_are_read_at_any_width(monkeypatch, capsys, kind):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run_main(monkeypatch, capsys, "list", kind)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    code, as_json, _ = run_main(monkeypatch, capsys, "list", kind, "--json")
    facts = json.loads(as_json)
    assert code == 0
    assert all(name in out for name in facts)


def test_losses_are_listed_with_their_settings(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    _, out, _ = run_main(monkeypatch, capsys, "list", "losses", "--json")
    facts = json.loads(out)
    assert list(facts) == loss_names()
    for name in loss_names():
        found = {setting: one["default"] for setting, one in facts[name]["settings"].items()}
        assert found == get_loss(name).defaults
        assert all(one["help"] for one in facts[name]["settings"].values())
    _, out, _ = run_main(monkeypatch, capsys, "list", "losses", "simtde")
    assert "loss.alpha=0.5" in out
    assert "congen" not in out


def test_progress_lines_say_where_a_run_stands():
    line = describe(TrainProgress("train", 50, 200, 0.123456, 1234.5, 0.8765), seconds=10)
    assert line == "step 50/200, loss 0.12346, best 87.65, 1,234 rows/s, 0:00:30 left"
    assert describe(TrainProgress("prepare", 1000, 2000), 0) == "tokenise 1,000/2,000 rows"
    assert "loss" not in describe(TrainProgress("train", 1, 2), 1)
    # Of a resumed run, only the steps taken since then say how long the rest takes.
    resumed = describe(TrainProgress("train", 60, 100, 0.5, 10.0, resumed=40), seconds=10)
    assert resumed == "step 60/100 (resumed from 40), loss 0.50000, 10 rows/s, 0:00:20 left"
    assert describe(TrainProgress("select", 1000, 2000), 0) == "1,000 of 2,000 rows selected by --where"


def test_a_log_file_gets_the_last_line_and_not_all_of_them(capsys):
    with train_progress() as tell:
        for step in range(1, 101):
            tell(TrainProgress("train", step, 100, 0.5))
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("step 100/100")
    assert len(lines) <= 2


def test_a_note_in_the_midst_of_training_does_not_change_the_time_left(monkeypatch, capsys):
    clock = SimpleNamespace(perf_counter=lambda: clock.now)
    monkeypatch.setattr("distill.cli.progress.time", clock)
    with train_progress() as tell:
        for clock.now, progress in [
            (0.0, TrainProgress("train", 0, 100)),
            (100.0, TrainProgress("train", 50, 100)),
            (100.0, TrainProgress("note", 0, 0, text="what is worth knowing")),
            (140.0, TrainProgress("train", 70, 100)),
        ]:
            tell(progress)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "what is worth knowing"
    assert [line.rpartition(", ")[2] for line in (lines[0], lines[2])] == ["0:01:40 left", "0:01:00 left"]


def test_help_and_import_load_nothing_heavy():
    code = (
        "import sys\n"
        "import distill\n"
        "from click.testing import CliRunner\n"
        "from distill.cli.main import cli\n"
        "for arguments in (['--help'], ['run', '--help']):\n"
        "    assert CliRunner().invoke(cli, arguments).exit_code == 0\n"
        "heavy = {'torch', 'transformers', 'sentence_transformers', 'pyarrow', 'scipy', 'accelerate'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_check_is_proposed_only_where_rows_were_held_out(built_cache, tmp_path, monkeypatch, capsys):
    arguments = [*quick(built_cache, tmp_path / "run"), "--held-out", "0"]
    code, out, _ = run_main(monkeypatch, capsys, *arguments)
    assert code == 0
    assert "Use it:" in out
    assert "Check it:" not in out


@pytest.mark.parametrize("tail", ["", "best"])
def test_an_export_lies_beside_its_run(tmp_path, monkeypatch, tail):
    asked = []

    def export(model, out, **options):
        asked.append(out)
        raise ExportError("enough for this test")

    (tmp_path / "run" / "best").mkdir(parents=True)
    (tmp_path / "run" / "run.json").write_text("{}")
    (tmp_path / "run" / "best" / "modules.json").write_text("[]")
    monkeypatch.setattr("distill.export.export_onnx", export)
    CliRunner().invoke(cli, ["export", str(tmp_path / "run" / tail), "--to", "onnx"])
    assert asked == [tmp_path / "run-onnx"]


def test_a_model_that_is_not_there_is_named_with_what_is_expected(monkeypatch, capsys):
    code, out, err = run_main(monkeypatch, capsys, "eval", "nosuch", "--suite", "fidelity")
    assert (code, out) == (2, "")
    assert "'nosuch': expected" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("runs/mse2", "runs/mse"),
        ("./runs/mse2", "runs/mse"),
        ("runs/mse/bets", "runs/mse/best"),
        ("runs/mze/best", "runs/mse"),
        ("../nosuch", None),
        ("/nowhere/at/all", None),
    ],
)
def test_a_mistyped_folder_is_no_hub_id(tmp_path, monkeypatch, capsys, typed, near):
    (tmp_path / "here" / "runs" / "mse" / "best").mkdir(parents=True)
    (tmp_path / "here" / "runs" / "mse" / "run.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "data").mkdir()
    for command in (
        ["eval", typed, "--suite", "fidelity"],
        ["finetune", typed, "--triples", "t.tsv"],
    ):
        code, _, err = run_main(monkeypatch, capsys, *command)
        assert code == 2
        assert f"there is no folder or file {Path(typed)}: " in err
        assert (f"did you mean {near}?" if near else "check the path") in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("typed", ["mse2", "org/mse2", "org/mse2@refs/pr/1", "minilm-l6", "layers:3"])
def test_what_may_be_a_hub_id_or_an_alias_is_no_folder(tmp_path, monkeypatch, typed):
    monkeypatch.chdir(tmp_path)
    assert describe_missing(typed) is None


def test_what_is_there_is_not_missing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "run.json").write_text("{}", encoding="utf-8")
    assert describe_missing("runs/a/") is None
    assert describe_missing(str(tmp_path / "runs")) is None
    assert describe_missing("runs/b") is not None


def test_a_folder_called_like_an_organisation_does_not_hide_its_models_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "a-clone").mkdir(parents=True)
    assert describe_missing("org/a-model") is None


def test_a_mistyped_remote_is_refused_before_torch_is_imported(tmp_path):
    script = (
        "import sys\n"
        "from types import ModuleType\n"
        "names = sys.modules['embedcache.share.location'] = ModuleType('embedcache.share.location')\n"
        "names.is_remote = lambda place: False\n"
        "names.list_remotes = lambda: {'s3': './bucket', 'team': './folder'}\n"
        "sys.argv = ['distill', 'run', '--cache', 'ss3']\n"
        "from distill.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as stop:\n"
        "    print(stop.code, sorted({'torch', 'transformers', 'accelerate'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "2 []"
    assert "no cache at ss3: the folder does not exist, and no remote has this name (remotes: s3, team)" in (
        " ".join(done.stderr.split())
    )
