"""The demo: harvest, build, distil, compare, and say what to do next."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console

import embedcache
from distill.cli.evaluate import table_console
from distill.cli.progress import print_run, train_progress
from distill.demo.harvest import harvest_sentences
from distill.evaluation.runner import evaluate
from distill.training.run import Run, run
from embedcache.cli.build import print_build
from embedcache.cli.progress import show_progress
from embedcache.fsio import make_directory, write_bytes

_CORPUS = "documentation"
_HELD_OUT = 1000
_FEWEST = 20_000


def run_demo(out: Path, *, teacher: str, student: str, sentences: int, epochs: int) -> Run:
    """Go the road from sentences to a student and print every step.

    Args:
        out: folder for the sentences, the cache and the run; an earlier demo in it is gone over again.
        teacher: alias, hub id or folder.
        student: student spec.
        sentences: how many sentences to collect at most.
        epochs: epochs of the student.

    Raises:
        DataError: if too few sentences are found.
        DistillError, EmbedCacheError: as the steps do.
    """
    console = Console()
    started = time.perf_counter()
    make_directory(out)

    console.rule("1  sentences")
    harvest = harvest_sentences(min(_FEWEST, sentences), sentences)
    corpus = out / f"{_CORPUS}.txt"
    write_bytes(corpus, ("\n".join(harvest.sentences) + "\n").encode())
    console.print(
        f"{len(harvest.sentences):,} distinct sentences from documentation on this machine -> {corpus}"
    )
    for sentence in harvest.sentences[:: max(1, len(harvest.sentences) // 3)][:3]:
        console.print(f"  “{sentence}”", highlight=False, markup=False)

    console.rule("2  the teacher, once")
    cache_folder = out / "cache"
    with show_progress() as progress:
        # The installed packages may have changed since an earlier demo; its vectors are reused all the same.
        cache = embedcache.build(
            corpus, teacher=teacher, cache=cache_folder, overwrite=True, progress=progress
        )
    if cache.result is not None:
        print_build(cache.result)

    console.rule("3  the student, from cached vectors")
    with train_progress() as on_train:
        trained = run(
            cache=cache_folder,
            teacher=cache.result.teacher if cache.result else None,
            corpus=_CORPUS,
            student=student,
            epochs=epochs,
            held_out=min(_HELD_OUT, len(harvest.sentences) // 20),
            out=out / "run",
            overwrite=True,
            on_progress=on_train,
        )
    print_run(trained)

    console.rule("4  student beside teacher, on sentences held out of training")
    table_console().print(evaluate(trained.folder, suite="fidelity", cache=cache_folder).table())

    minutes = (time.perf_counter() - started) / 60
    console.rule(f"done in {minutes:.1f} minutes")
    console.print(f"The student lies in {trained.best}. What to type next:", highlight=False, soft_wrap=True)
    for line in (
        f"distill export {trained.folder} --to onnx --int8 --out {out}/onnx",
        f"distill run --cache {cache_folder} --corpus {_CORPUS} --student layers:2 --loss ckd --epochs 2",
        f"embedcache build YOUR_TEXTS.txt --teacher {teacher} --cache {cache_folder}",
    ):
        console.print(f"  {line}", highlight=False, soft_wrap=True)
    return trained
