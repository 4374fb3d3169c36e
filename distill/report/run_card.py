"""The evaluation on a run's model card: what a report says of the run, between the marks of the card."""

from __future__ import annotations

from pathlib import Path

from distill.card import CARD, with_evaluation
from distill.errors import DistillError
from distill.layout import BEST
from distill.report.assemble import make_report, students_of
from distill.report.folder import read_run
from distill.report.kept_results import read_results
from distill.report.markdown import result_parts
from embedcache.errors import EmbedCacheError
from embedcache.fsio import write_bytes


def update_card(folder: Path) -> str | None:
    """Write what is kept of a run's evaluations on its model card, where it has one.

    Returns:
        Why the card is not up to date; None where it is.
    """
    card = folder / BEST / CARD
    try:
        # Bytes, so that line ends stay as they are. A run that is not finished has no card.
        before = card.read_bytes().decode() if card.is_file() else None
        if before is None or (evaluation := render_evaluation(folder)) is None:
            return None
        after = with_evaluation(before, evaluation)
        if after != before:
            write_bytes(card, after.encode())
    except (DistillError, EmbedCacheError, OSError, ValueError) as error:
        return f"the model card {card} is not brought up to date: {error}"
    return None


def render_evaluation(folder: Path) -> str | None:
    """Return what a report says of a run's evaluations, as Markdown; None where none is kept.

    Raises:
        DataError: if the run's record or configuration cannot be read.
    """
    run = read_run(folder)
    results = {run.folder: read_results(run, missing=[])}
    report = make_report([run], students_of([run], results), results)
    if not report.suites:
        return None
    # Notes stay in the report: they name places of this machine.
    return "\n\n".join(["## Evaluation", *result_parts(report, "###")])
