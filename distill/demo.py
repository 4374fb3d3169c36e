"""Whole road on sentences that are already on this machine: ``python -m distill.demo``, or ``make demo``.

It collects English sentences from the docstrings of Python and of the installed packages, caches a real
teacher's vectors of them, distils a student from the cache, and compares the two.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import os
import re
import sys
import sysconfig
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from distill.errors import DataError, DistillError
from embedcache.errors import EmbedCacheError

if TYPE_CHECKING:
    from distill.training.run import Run

_LARGEST_FILE = 200_000
_SKIPPED = {"__pycache__", "node_modules", "site-packages", "dist-packages", "test", "tests", "testing"}
_NAMED = re.compile(r"`{1,2}([\w ]+)`{1,2}|\*{1,2}([\w ]+)\*{1,2}")
_SPLIT = re.compile(r"(?<=[.?!]) +(?=[A-Z])")
# Four to forty words of letters with ordinary punctuation: code, references and formulas do not match.
_SENTENCE = re.compile(r"[A-Z][a-z]*(?:['-][a-z]+)*(?:[,;:]? \(?[A-Za-z]+(?:['-][A-Za-z]+)*\)?){3,39}[.?!]")
_ENGLISH = re.compile(r" (?:the|an?|is|are|was|be|will|can|may|of|to|in|for|with|that|this|it|if|and|not) ")


def collect_sentences(count: int, minimum: int = 1, roots: Sequence[Path] | None = None) -> list[str]:
    """Return distinct English sentences from docstrings; modules are parsed and never imported.

    The same files give the same sentences in the same order.

    Args:
        count: stop at this number of sentences.
        minimum: least number of sentences.
        roots: folders to search. Default: the standard library and the installed packages.

    Raises:
        DataError: if there are fewer than ``minimum``.
    """
    paths = sysconfig.get_paths()
    folders = roots or dict.fromkeys(Path(paths[name]) for name in ("stdlib", "purelib", "platlib"))
    found: dict[str, str] = {}
    for path in _modules(folders):
        for docstring in _docstrings(path):
            for sentence in sentences_of(docstring):
                found.setdefault(sentence.casefold(), sentence)
        if len(found) >= count:
            break
    if len(found) < minimum:
        raise DataError(
            f"found {len(found)} English sentences in {', '.join(map(str, folders))}, expected at least "
            f"{minimum}; install the project with its dependencies, or build a corpus of your own text"
        )
    return list(found.values())[:count]


def sentences_of(docstring: str) -> Iterator[str]:
    """Yield the plain English sentences of a docstring; doctests and lists of arguments are left out."""
    for block in re.split(r"\n\s*\n", docstring.strip()):
        first = block.strip().partition("\n")[0]
        if first.startswith(">>>") or first.endswith(":"):
            continue
        for sentence in _SPLIT.split(_NAMED.sub(r"\1\2", " ".join(block.split()))):
            words = sentence.split()
            lower = sum(word.islower() for word in words)
            if _SENTENCE.fullmatch(sentence) and _ENGLISH.search(sentence) and lower >= 0.6 * len(words):
                yield sentence


def _modules(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield Python files in an order that mixes packages and depends on their relative paths alone."""
    found: list[tuple[bytes, Path]] = []
    for root in folders:
        for folder, below, names in os.walk(root):
            below[:] = [name for name in below if name not in _SKIPPED]
            place = Path(folder).relative_to(root)
            found += [
                (hashlib.blake2b(os.fsencode(place / name), digest_size=8).digest(), Path(folder, name))
                for name in names
                if name.endswith(".py")
            ]
    for _, path in sorted(found):
        if path.stat().st_size <= _LARGEST_FILE:
            yield path


def _docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module; nothing of one that cannot be parsed."""
    with warnings.catch_warnings():
        # Invalid escapes in the docstrings of other packages.
        warnings.simplefilter("ignore")
        try:
            nodes: list[ast.AST] = [ast.parse(path.read_bytes())]
        except (OSError, SyntaxError, ValueError, RecursionError):
            return
    while nodes:
        node = nodes.pop()
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            yield ast.get_docstring(node) or ""
            nodes += reversed(node.body)


def run_demo(
    out: Path, *, teacher: str, student: str, sentences: int, epochs: int, roots: Sequence[Path] | None = None
) -> Run:
    """Go the road from sentences to a student and print every step.

    Args:
        out: folder of the sentences, the cache and the run; an earlier demo in it is repeated.
        teacher: alias, hub id or folder.
        student: student spec.
        sentences: sentences to collect.
        epochs: epochs of the student.
        roots: folders to search for sentences, as for ``collect_sentences``.

    Raises:
        DataError: if there are fewer than a fifth of the sentences.
        DistillError, EmbedCacheError: as the steps do.
    """
    from rich.console import Console

    import embedcache
    from distill.cli.evaluate import table_console
    from distill.cli.progress import print_run
    from distill.evaluation.runner import evaluate
    from distill.report.evaluation import render
    from distill.training.tracking import train_progress
    from distill.training.train import run
    from embedcache.cli.build import print_build
    from embedcache.fsio import make_directory, write_bytes
    from embedcache.progress import show_progress

    console = Console(highlight=False, soft_wrap=True)
    started = time.perf_counter()

    console.rule("1  sentences")
    texts = collect_sentences(sentences, minimum=sentences // 5, roots=roots)
    make_directory(out)
    corpus, cache = out / "documentation.txt", out / "cache"
    write_bytes(corpus, ("\n".join(texts) + "\n").encode())
    console.print(f"{len(texts):,} distinct sentences from documentation on this machine -> {corpus}")
    for text in texts[:: max(1, len(texts) // 3)][:3]:
        console.print(f"  “{text}”", markup=False)

    console.rule("2  the teacher, once")
    with show_progress() as progress:
        # Packages may have changed since an earlier demo; the vectors of the same sentences are used again.
        built = embedcache.build(corpus, teacher=teacher, cache=cache, overwrite=True, progress=progress)
    if built.result is not None:
        print_build(built.result)

    console.rule("3  the student, from cached vectors")
    with train_progress() as on_progress:
        trained = run(
            cache=cache,
            teacher=built.result.teacher if built.result else None,
            corpus=corpus.stem,
            student=student,
            epochs=epochs,
            held_out=min(1000, len(texts) // 20),
            out=out / "run",
            overwrite=True,
            on_progress=on_progress,
        )
    print_run(trained)

    console.rule("4  student beside teacher, on sentences held out of training")
    table_console().print(render([evaluate(trained.folder, suite="fidelity", cache=cache)]))

    console.rule(f"done in {(time.perf_counter() - started) / 60:.1f} minutes")
    console.print(
        f"The student lies in {trained.best}. What to type next, after 'source .venv/bin/activate':"
    )
    for line in (
        f"distill export {trained.folder} --to onnx --int8 --out {out}/onnx",
        f"distill run --cache {cache} --corpus {corpus.stem} --student layers:2 --loss ckd --epochs 2",
        f"embedcache build YOUR_TEXTS.txt --teacher {teacher} --cache {cache}",
    ):
        console.print(f"  {line}")
    return trained


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m distill.demo",
        description="Distil a student from sentences that are already on this machine.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder of the results")
    parser.add_argument("--teacher", default="minilm-l6", help="alias, hub id or folder of the teacher")
    parser.add_argument("--student", default="layers:3", help="student, as for 'distill run'")
    parser.add_argument("--sentences", type=int, default=24_000, help="sentences to collect")
    parser.add_argument("--epochs", type=int, default=1, help="epochs of the student")
    try:
        run_demo(**vars(parser.parse_args(arguments)))
    except (DistillError, EmbedCacheError) as error:
        sys.exit(f"distill.demo: {error}")


if __name__ == "__main__":
    main()
