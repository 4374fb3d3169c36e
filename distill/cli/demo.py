"""``distill demo``."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("demo"),
    show_default=True,
    help="Folder for everything made.",
)
@click.option(
    "--teacher", default="minilm-l6", show_default=True, help="Alias, hub id or folder of the teacher."
)
@click.option("--student", default="layers:3", show_default=True, help="Student, as for 'distill run'.")
@click.option(
    "--sentences",
    type=click.IntRange(1000),
    default=24_000,
    show_default=True,
    help="Sentences to collect at most.",
)
@click.option("--epochs", type=click.IntRange(1), default=4, show_default=True, help="Epochs of the student.")
def demo_command(out: Path, teacher: str, student: str, sentences: int, epochs: int) -> None:
    """Go the whole road on sentences that are already on this machine.

    Collects English sentences from the documentation of Python and of installed packages, caches a real
    teacher's vectors of them, distils a real student, and compares the two.
    """
    from distill.demo.road import run_demo

    run_demo(out, teacher=teacher, student=student, sentences=sentences, epochs=epochs)
