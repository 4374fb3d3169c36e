"""The held-out sentences of runs, encoded by teacher and students, for examples of nearest neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from distill.errors import DistillError
from distill.evaluation.encoding import Progress, encode_distinct
from distill.evaluation.loader import Loader
from distill.evaluation.sentences import read_sentences
from distill.evaluation.tasks import Request
from distill.evaluation.teacher_choice import choose_teacher, teacher_subject
from distill.report.data import Examples
from distill.report.folder import RunFolder
from distill.report.neighbours import choose_sentences, make_examples
from embedcache.errors import EmbedCacheError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_STUDENTS = 3
"""Students whose neighbours stand side by side: the best by the main suite."""


def find_examples(
    runs: Sequence[tuple[str, RunFolder]],
    teacher: str | None,
    *,
    queries: int,
    device: str,
    progress: Progress,
    notes: list[str],
) -> Examples | None:
    """Return nearest neighbours by the teacher and by the runs' students; None where there are none to show.

    Args:
        runs: (student's key, run), the best first.
        teacher: the teacher's key; None where there is none.
        queries: how many sentences to draw; 0 for no examples.
        device: what the models run on.
        progress: called while they encode.
        notes: takes why there are no examples, or no teacher's.
    """
    chosen = [(key, run) for key, run in runs if run.has_student][:MOST_STUDENTS]
    if queries == 0 or not chosen:
        return None
    request = Request(models=tuple(str(run.folder) for _, run in chosen), progress=progress)
    load = Loader(device, "float32")
    try:
        sentences = read_sentences(request)
        texts = choose_sentences(sentences.texts)
        vectors: dict[str, NDArray[np.float32]] = {}
        choice = None if teacher is None else choose_teacher(request.models, None, notes)
        if teacher is not None and choice is not None:
            subject = teacher_subject(choice, None, request, load, texts, essential=False, notes=notes)
            if subject is not None:
                vectors[teacher] = subject.encoded.pick(texts)
        for key, run in chosen:
            vectors[key] = encode_distinct(load(str(run.folder)), texts, progress).pick(texts)
        reference = teacher if teacher in vectors else None
        source = f"sentences that {chosen[0][1].name} held out"
        return make_examples(texts, vectors, reference, queries=queries, source=source)
    except (DistillError, EmbedCacheError) as error:
        # Examples are a service; a report has more to say.
        notes.append(f"no nearest neighbours: {error}")
        return None
