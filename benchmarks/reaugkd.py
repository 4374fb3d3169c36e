"""ReAugKD's Tables 1 and 2 for one task: teacher, projection, students, knowledge bases, scores.

Everything is done by the commands that a user would type, and each is left out where it was done before:

    python benchmarks/reaugkd.py TASK.tsv --student layers:3 --out tables/TASK

TASK.tsv has the columns ``split``, ``label``, ``text`` and for pairs ``text2``. Rows of ``train`` are learned
from; by those of ``held`` checkpoints, the weight of soft labels, k and beta are chosen; the splits of
``--report`` are what the table is about, and nothing is chosen by them.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from embedcache.cache import Cache

SWEEP = Path(__file__).with_name("sweeps") / "reaugkd.yaml"
TEACHER, PROJECTED = "task", "task.projected"
FINE_TUNED, RETRIEVAL = "fine-tuned student", "reaugkd, with retrieval"

Row = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """Task of the benchmark, from the command line.

    Attributes:
        data: the labelled file.
        out: folder of all outputs.
        pairs: True if a row has two texts.
        options: all arguments.
    """

    data: Path
    out: Path
    pairs: bool
    options: argparse.Namespace

    @property
    def columns(self) -> list[str]:
        """The options that name the file's columns of texts."""
        return ["--text", "text", *(["--text2", "text2"] if self.pairs else [])]

    @property
    def compute(self) -> list[str]:
        """Options for the computation, the same for everything that is trained."""
        return ["--threads", str(self.options.threads), "--mixed-precision", self.options.mixed_precision]


def command(*words: object) -> None:
    """Run a command of this project, its output on this terminal."""
    print("$", *words, flush=True)
    subprocess.run([sys.executable, "-m", *map(str, words)], check=True)


def answer(*words: object) -> dict[str, Any]:
    """Run a command of this project and return its JSON."""
    print("$", *words, flush=True)
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)], check=True, stdout=subprocess.PIPE, text=True
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def held_out(task: Task) -> Path:
    """Write the development rows into a separate file, as sweeps expect them."""
    path = task.out / "held.tsv"
    with task.data.open(newline="") as source, path.open("w", newline="") as target:
        rows = csv.DictReader(source, delimiter="\t", quoting=csv.QUOTE_NONE)
        names = ["label", "text", *(["text2"] if task.pairs else [])]
        print(*names, sep="\t", file=target)
        for row in rows:
            if row["split"] == "held":
                print(*(row[name] for name in names), sep="\t", file=target)
    return path


def teach(task: Task, model: Path | str, out: Path, length: Sequence[object], lr: float, seed: int) -> Path:
    """Fine-tune ``model`` with the labels."""
    if not (out / "best" / "classifier.json").exists():
        rows = ["--rows", "split=train", "--dev-rows", "split=held", "--label", "label", *task.columns]
        more = ["--lr", lr, "--seed", seed, "--out", out, "--overwrite", *task.compute]
        command("distill", "finetune", model, "--labels", task.data, *rows, *length, *more)
    return out / "best"


def build(task: Task, teacher: Path, cache: Path) -> None:
    """Encode the training rows with the teacher, and project its vectors."""
    known = {one.name: one for one in Cache(cache).teachers()} if cache.exists() else {}
    if PROJECTED in known:
        refuse_other_width(known[PROJECTED].contract.dimension, known[TEACHER].contract.dimension, task)
        return
    # What an interrupted build has encoded is not encoded again.
    texts = ["--text-column", "text", *(["--text2-column", "text2"] if task.pairs else [])]
    rows = [task.data, *texts, "--label-column", "label", "--rows", "split=train"]
    names = ["--teacher", teacher, "--teacher-name", TEACHER, "--cache", cache]
    for output in ("embedding", "logits"):
        command("embedcache", "build", *rows, *names, "--output", output)
    length = ["--lr", task.options.projection_lr, "--epochs", task.options.projection_epochs]
    width = ["--dim", task.options.dim] if task.options.dim else []
    command("distill", "kb", "project", "--cache", cache, "--teacher", TEACHER, *length, *width)


def refuse_other_width(width: int, teachers: int, task: Task) -> None:
    """End where the projection there is has another width than the one asked for: --dim, or the teacher's."""
    wanted = task.options.dim or teachers
    if width != wanted:
        asked = (
            f"--dim {wanted}" if task.options.dim else f"without --dim it would be {wanted}, the teacher's"
        )
        sys.exit(f"{task.out}: the projection there is {width} wide, {asked}: give another --out")


def sweep(task: Task, cache: Path) -> list[dict[str, str]]:
    """Train the students of all losses, and return those that the held-out rows chose."""
    options, out = task.options, task.out / "sweep"
    settings = [
        f"training.max_steps={options.steps}",
        "evaluation.patience_epochs=null",
        f"optimizer.lr={options.lr}",
        f"training.threads={options.threads}",
        f"training.mixed_precision={options.mixed_precision}",
        f"evaluation.every={max(1, options.steps // 10)}",
    ]
    more = [word for one in settings for word in ("--set", one)]
    others = options.seeds.partition(",")[2]
    seeds = ["--more-seeds", others] if others else []
    weights = ["--vary", f"loss.soft={options.soft}"] if options.soft else []
    command(
        *("distill", "sweep", options.sweep, "--cache", cache, "--student", options.student),
        *("--dev", held_out(task), "--out", out, *seeds, *weights, *more),
    )
    with (out / "runs.csv").open(newline="") as source:
        runs = list(csv.DictReader(source))
    trained = Counter((run["loss.name"], run["loss.soft"]) for run in runs)
    # The weight that was chosen is the one that was trained with the most seeds.
    return [
        run
        for run in runs
        if all(
            trained[run["loss.name"], run["loss.soft"]] >= n
            for (loss, _), n in trained.items()
            if loss == run["loss.name"]
        )
    ]


def retrieve(task: Task, run: Path, table: Path) -> None:
    """Give a student its knowledge base, choose k and beta, and keep the table over k."""
    if table.exists():
        return
    if not (run / "best" / "knowledge_base").exists():
        command("distill", "kb", "build", run, "--cache", task.out / "cache")
    rows = ["--data", task.data, "--rows", "split=held", "--label", "label", *task.columns]
    found = answer("distill", "kb", "tune", run, *rows, "--threads", task.options.threads, "--json")
    with table.open("w", newline="") as target:
        writer = csv.DictWriter(target, found["table"][0], delimiter="\t")
        writer.writeheader()
        writer.writerows(found["table"])


def score(task: Task, model: Path, split: str, *more: object) -> Row:
    """Return a classifier's scores on a split, and under ``right`` which of its answers are."""
    rows = ["--rows", f"split={split}", "--label", "label", *task.columns, "--threads", task.options.threads]
    answers = task.out / "answers.jsonl"
    found = answer("distill", "predict", model, task.data, *rows, "--json", "--out", answers, *more)
    said = map(json.loads, answers.read_text().splitlines())
    right = [one["label"] == one["gold"] for one in said]
    kept = ("k", "beta", "encode_seconds", "search_seconds")
    measures = {"accuracy": "accuracy", "f1": "macro_f1", "matthews": "matthews"}
    shares = {name: 100 * found["score"][key] for name, key in measures.items()}
    return {"split": split, **shares, **{name: found[name] for name in kept}, "right": right}


def summary(results: Iterable[Row]) -> list[Row]:
    """Return mean and deviation (n - 1) over seeds of each method and split."""
    groups: dict[tuple[object, object, object], list[float]] = {}
    for one in results:
        groups.setdefault((one["split"], one["method"], one["soft"]), []).append(one["accuracy"])
    return [
        {
            "split": split,
            "method": method,
            "soft": soft,
            "seeds": len(found),
            "accuracy": round(mean(found), 2),
            "deviation": round(stdev(found), 2) if len(found) > 1 else None,
        }
        for (split, method, soft), found in groups.items()
    ]


def leads(results: Sequence[Row]) -> list[Row]:
    """Return the mean lead of retrieval over each other method, with its 95 % interval over rows."""
    right: dict[tuple[str, str], list[list[bool]]] = {}
    for one in results:
        right.setdefault((one["split"], one["method"]), []).append(one["right"])
    found: list[Row] = []
    for (split, method), other in right.items():
        if method != RETRIEVAL:
            apart = 100 * (np.mean(right[split, RETRIEVAL], axis=0) - np.mean(other, axis=0))
            interval = bootstrap((apart,), np.mean, method="percentile", rng=0).confidence_interval
            bounds = {name: round(float(getattr(interval, name)), 2) for name in ("low", "high")}
            found.append({"split": split, "over": method, "lead": round(float(apart.mean()), 2), **bounds})
    return found


def table_one(task: Task) -> list[Row]:
    """Do all that Table 1 needs for the task, and return a result for each model, seed and split."""
    options = task.options
    results: list[Row] = []

    def report(method: str, model: Path, seed: int, soft: object, *more: object) -> None:
        for split in options.report:
            found = score(task, model, split, *more)
            results.append({"method": method, "soft": soft, "seed": seed, **found})

    teacher = teach(
        task,
        options.teacher,
        task.out / "teacher",
        ["--epochs", options.teacher_epochs, "--max-length", options.max_length],
        options.teacher_lr,
        0,
    )
    report("teacher", teacher, 0, None)
    cache = task.out / "cache"
    build(task, teacher, cache)
    length = ["--max-steps", options.steps, "--batch-size", 64, "--max-length", options.max_length]
    kind, _, which = options.student.partition(":")
    # All students begin with the same weights: those of a folder, or some layers of the teacher.
    begin: Path | str = teacher if kind == "layers" else options.student
    length += ["--layers", which] if kind == "layers" else []
    for seed in map(int, options.seeds.split(",")):
        out = task.out / f"fine-tuned-{seed}"
        report(FINE_TUNED, teach(task, begin, out, length, options.lr, seed), seed, None)
    for run in sweep(task, cache):
        folder, seed = task.out / "sweep" / "runs" / run["run"], int(run["seed"])
        if run["loss.name"] == "reaugkd":
            retrieve(task, folder, task.out / f"k-{seed}.tsv")
            report(RETRIEVAL, folder, seed, run["loss.soft"])
            report("reaugkd, student alone", folder, seed, run["loss.soft"], "--no-retrieval")
        else:
            report(run["loss.name"], folder, seed, run["loss.soft"])
    return results


def main() -> None:
    """Read the arguments, do it, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--teacher", default="minilm-l6", help="encoder to fine-tune")
    parser.add_argument("--teacher-epochs", type=int, default=3)
    parser.add_argument("--teacher-lr", type=float, default=5e-5)
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a text or pair")
    parser.add_argument("--student", default="layers:3", help="layers:K of the teacher, or an encoder")
    parser.add_argument("--steps", type=int, default=1000, help="steps of 64 rows for every student")
    parser.add_argument("--lr", type=float, default=5e-5, help="learning rate of every student")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--sweep", type=Path, default=SWEEP)
    parser.add_argument("--soft", help="weights of soft labels to choose from; default: those of the sweep")
    parser.add_argument("--dim", type=int, help="width of the projection, that of the student")
    parser.add_argument("--projection-lr", type=float, default=1e-3)
    parser.add_argument("--projection-epochs", type=int, default=10)
    parser.add_argument("--report", nargs="+", default=["dev"], help="splits to report")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--mixed-precision", default="auto")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with options.data.open() as source:
        pairs = "text2" in source.readline().rstrip("\n").split("\t")
    results = table_one(Task(options.data, options.out, pairs, options))
    table, ahead = summary(results), leads(results)
    dim = Cache(options.out / "cache").teacher(PROJECTED).contract.dimension
    runs = [{name: value for name, value in one.items() if name != "right"} for one in results]
    kept = {"dim": dim, "runs": runs, "table": table, "leads": ahead}
    (options.out / "table.json").write_text(json.dumps(kept, indent=1) + "\n")
    for row in (*table, *ahead):
        print(*row.values(), sep="\t")


if __name__ == "__main__":
    main()
