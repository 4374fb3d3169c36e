"""The command line of distill: options, exit codes, one line per error, progress, and help for everything."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Literal, get_args, get_origin

import click
import pytest
import yaml
from click.testing import CliRunner
from distill_helpers import HELD_OUT

from distill.cli.main import COMMANDS, cli, main
from distill.config.base import Key, keys
from distill.config.models import RunConfig
from distill.errors import ExportError, TrainingError
from distill.layout import describe_missing
from distill.losses.registry import get_loss, loss_names
from distill.training.tracking import TrainProgress, describe, train_progress

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


def test_every_option_changes_its_key_and_no_other(tmp_path):
    before = dumped("--cache", "c")
    for key in OPTIONS:
        words, value = sample(key)
        assert before[key.path] != value
        others = {"teacher_weights": {"teacher": ["a", "b"]}, "student.spec": {"loss.name": "seed"}}.get(
            key.path, {}
        )
        own = [] if key.path == "cache" else ["--cache", "c"]
        assert dumped(*own, *words) == {**before, **others, key.path: value}, key.option
    # Options that are not given leave a file as it is, and what is dumped is a file.
    (tmp_path / "run.yaml").write_text("cache: c\nteacher: [x, y]\nteacher_weights: [1, 2]\n")
    found = dumped("--config", str(tmp_path / "run.yaml"))
    assert (found["teacher"], found["teacher_weights"]) == (["x", "y"], [1.0, 2.0])
    first = CliRunner().invoke(cli, ["run", "--cache", "c", "--lr", "3e-7", "--loss", "ckd", "--dump-config"])
    (tmp_path / "run.yaml").write_text(first.stdout)
    again = CliRunner().invoke(cli, ["run", "--config", str(tmp_path / "run.yaml"), "--dump-config"])
    assert again.stdout == first.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run"], "cache (--cache): missing"),
        (["run", "--cache", "nowhere"], "nowhere"),
        (["run", "--cache", "c", "--set", "training.epoch=3"], "did you mean training.epochs?"),
        (["run", "--cache", "CACHE", "--loss", "mso"], "--loss"),
        (["run", "--cache", "c", "--lr", "nan"], "--lr"),
        (["run", "--config", "nowhere.yaml"], "nowhere.yaml"),
        (["run", "--cache", "CACHE", "--student", "layers:9"], "layers:9"),
        (["run", "--cache", "CACHE", "--held-out", "159"], "159 held out"),
        (["run", "--cache", "CACHE", "--teacher", "tiny", "--teacher", "tiny"], "each once"),
        (["run", "--cache", "CACHE", "--target-dim", "17"], "--target-dim"),
        (["run", "--cache", "CACHE", "--loss", "congen"], "two views"),
        (["run", "--cache", "CACHE", "--view", "crop"], "no view 'crop'"),
        (["run", "--cache", "CACHE", "--loss", "ckd", "--set", "loss.queue=161"], "160"),
        (["run", "--cache", "CACHE", "--loss", "mse", "--set", "loss.tau=0.1"], "loss.tau"),
        (["run", "--cache", "CACHE", "--drop-head"], "--drop-head"),
        (["run", "--cache", "CACHE", "--warmup", "1000"], "--warmup"),
        (["run", "--cache", "CACHE", "--held-out", "0", "--patience-epochs", "1"], "--patience-epochs"),
        (["run", "--cache", "CACHE", "--dev", "missing.tsv"], "missing.tsv does not exist"),
        (["run", "--cache", "CACHE", "--mirror", "m", "--cache-limit", "1GB"], "only for a remote"),
        (["run", "--cache", "CACHE", "--where", "row < 0"], "--where"),
        (["run", "--resume", "nowhere"], "no run"),
        (["run", "--resume", "run", "--lr", "1", "--threads", "2"], "leave out --lr "),
        (["run", "--resume", "run", "--config", "a.yaml", "--set", "seed=1"], "leave out --config, --set "),
        (["finetune", "m", "--resume", "run"], "leave out START "),
        (["run", "--epochs", "many"], "see 'distill run --help'"),
        (["eval", "nosuch", "--suite", "fidelity"], "'nosuch'"),
    ],
)
def test_mistakes_of_the_user_are_one_line_and_code_two(
    built_cache, tmp_path, monkeypatch, capsys, arguments, message
):
    monkeypatch.chdir(tmp_path)
    filled = [str(built_cache) if argument == "CACHE" else argument for argument in arguments]
    code, out, err = run_main(monkeypatch, capsys, *filled)
    assert (code, out) == (2, "")
    assert err.startswith(f"distill {arguments[0]}: ")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (TrainingError("the loss\nbecame nan"), 1, "distill run: the loss became nan\n"),
        (OSError(28, "No space left on device", "/full"), 1, "(/full)"),
        (KeyboardInterrupt("resume with 'x'"), 130, "resume with 'x'"),
    ],
)
def test_failures_underneath_have_their_own_codes(monkeypatch, capsys, error, code, message):
    asked = []

    def fail(config, on_progress, *, recipe):
        asked.append((config.optimizer.lr, recipe))
        raise error

    monkeypatch.setattr("distill.training.train.train", fail)
    recipe = ["--recipe", "distilcse/bert-base-kd"]
    found, out, err = run_main(monkeypatch, capsys, "run", "--cache", ".", *recipe)
    assert (found, out) == (code, "")
    assert message in err
    assert asked == [(2e-4, recipe[1])]
    if code == 1:
        _, _, err = run_main(monkeypatch, capsys, "--debug", "run", "--cache", ".")
        assert "Traceback" in err


def quick(cache, out, *more: object) -> list[object]:
    return [
        *("run", "--cache", cache, "--student", "layers:1", "--epochs", 1, "--batch-size", 64),
        *("--device", "cpu", "--mixed-precision", "no", "--threads", 1, "--out", out, *more),
    ]


def test_the_summary_names_the_student_and_the_next_commands(built_cache, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "160")
    command = quick(built_cache, tmp_path / "run", "--where", "row >= 60", "--held-out", HELD_OUT)
    code, out, err = run_main(monkeypatch, capsys, *command)
    assert code == 0
    assert err.splitlines() == ["100 of 160 rows selected by --where", "loss mse, learning rate 0.0007"]
    for part in (
        f'SentenceTransformer("{tmp_path / "run" / "best"}")',
        f"distill eval {tmp_path / 'run'} --suite fidelity",
        "2 of 2",
        "held-out",
        "100 of 160 rows by --where",
    ):
        assert part in out
    code, out, _ = run_main(monkeypatch, capsys, *command, "--overwrite", "--json")
    facts = json.loads(out)
    assert (code, facts["selected"], facts["rows"], facts["teachers"]) == (0, 100, 70, ["tiny"])
    assert facts["best"] == str(tmp_path / "run" / "best")
    assert 0 < facts["best_score"] <= 1
    monkeypatch.setattr("distill.training.distributed.is_first_process", lambda: False)
    assert run_main(monkeypatch, capsys, *command, "--overwrite") == (0, "", "")


def test_an_interrupted_run_goes_on_by_its_folder(built_cache, tmp_path, monkeypatch, capsys):
    from distill.training.trainer import Trainer

    folder, look = tmp_path / "run", Trainer._report

    def interrupted(trainer, tracker):
        look(trainer, tracker)
        if trainer.step == 2:
            raise KeyboardInterrupt

    command = quick(built_cache, folder, "--checkpoint-every", 1, "--held-out", 0)
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_report", interrupted)
        assert run_main(patch, capsys, *command)[0] == 130
    code, _, err = run_main(monkeypatch, capsys, *command)
    assert code == 2
    assert f"distill run --resume {folder}'" in err
    code, out, err = run_main(monkeypatch, capsys, "run", "--resume", folder, "--threads", 2)
    assert code == 0
    assert "3 of 3, resumed from step 1" in out
    # Without held-out rows there is nothing to check it on.
    assert "Check it:" not in out
    written = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
    assert written["training"]["threads"] == 2


def test_progress_says_where_a_run_stands(capsys):
    line = describe(TrainProgress("train", 50, 200, 0.123456, 1234.5, 0.8765), seconds=10)
    assert line == "step 50/200, loss 0.12346, best score 87.65, 1,234 rows/s, 0:00:30 left"
    # Of a resumed run, only the steps taken since then say how long the rest takes.
    resumed = describe(TrainProgress("train", 60, 100, 0.5, 10.0, resumed=40), seconds=10)
    assert resumed == "step 60/100 (resumed from 40), loss 0.50000, 10 rows/s, 0:00:20 left"
    with train_progress() as tell:
        for step in range(1, 101):
            tell(TrainProgress("train", step, 100, 0.5))
        tell(TrainProgress("note", 0, 0, text="the student has 3 layers"))
    assert capsys.readouterr().err.splitlines() == ["the student has 3 layers"]


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


@pytest.mark.parametrize(("processes", "waits"), [({}, 0), ({"RANK": "0"}, 0), ({"RANK": "1"}, 1)])
def test_the_first_of_several_processes_reports_an_error(tmp_path, monkeypatch, capsys, processes, waits):
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
    code, out, err = run_main(monkeypatch, capsys, "list", kind, "--all")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out
    code, as_json, _ = run_main(monkeypatch, capsys, "list", kind, "--json")
    facts = json.loads(as_json)
    assert code == 0
    assert all(name in out for name in facts)
    if kind == "losses":
        assert list(facts) == loss_names()
        for name in loss_names():
            found = {setting: one["default"] for setting, one in facts[name]["settings"].items()}
            assert found == get_loss(name).defaults


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


@pytest.mark.parametrize(
    ("typed", "near"),
    [
        ("runs/mse2", "runs/mse"),
        ("./runs/mse2", "runs/mse"),
        ("runs/mse/bets", "runs/mse/best"),
        ("../nosuch", ""),
        *((name, None) for name in ("mse2", "org/a-model", "org/mse2@refs/pr/1", "layers:3", "runs/mse/")),
    ],
)
def test_a_mistyped_folder_is_not_taken_for_a_hub_id(tmp_path, monkeypatch, typed, near):
    for name in ("runs/mse/best", "org/a-clone"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "runs" / "mse" / "run.json").write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    message = describe_missing(typed)
    assert (message is None) == (near is None)
    assert near is None or (f"did you mean {near}?" if near else "check the path") in message


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
