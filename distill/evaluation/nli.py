"""Natural language inference: does a linear classifier on two frozen vectors know what follows from what?

SICK-E reads ``sick.tsv`` (columns ``subset, sentence1, sentence2, entailment``; its trial examples choose the
strength) with the features ``[|u - v| ; u * v]``. SNLI reads a file to learn from and one to score (columns
``label, premise, hypothesis``) with ``[u ; v ; u * v ; |u - v|]``. Of the file to learn from, as many pairs
as were asked for are drawn, all pairs of a premise together; the pairs of a tenth of the premises choose the
strength, so the file that is scored chooses nothing. Where there is no SNLI test file the dev file is scored,
and a note says so.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from distill.errors import DataError
from distill.evaluation.classification import ALL, DEV, TEST, TRAIN, ClassificationTask, LabelledSet
from distill.evaluation.classifier import entailment_features, pair_features
from distill.evaluation.labelled import Examples, Layout, read_examples
from distill.evaluation.tasks import SNLI_PAIRS, NotThereError, Request
from distill.evaluation.testset import find_first_test_file, find_test_file

SICK = "sick"
SNLI_TRAIN = ("snli_train", "snli_train100k")
SNLI_SCORED = ("snli_test", "snli_dev", "snli_dev_tokenized")
"""File names without ending; the first that is there is read."""

HELD_OUT = 0.1
"""Share of SNLI's training premises whose pairs choose the strength."""

_SICK_LAYOUT = Layout(
    texts=("sentence1", "sentence2"),
    label="entailment",
    split="subset",
    parts={TRAIN: ("train",), DEV: ("trial",), TEST: ("test",)},
)
_SNLI_LAYOUT = Layout(texts=("premise", "hypothesis"))


def load_sick(folder: Path) -> LabelledSet | None:
    """Read SICK-E; None where its file is not there.

    Raises:
        DataError: if the file is damaged, lacks a column or a part, or has nothing to tell apart.
    """
    path = find_test_file(folder, SICK)
    if path is None:
        return None
    parts, skipped = read_examples(path, _SICK_LAYOUT, ALL)
    return LabelledSet("sicke", "SICK-E", parts, pairs=pair_features, skipped=skipped, files=(path,))


def load_snli(folder: Path, seed: int, pairs: int = SNLI_PAIRS) -> LabelledSet | None:
    """Read SNLI; None where there is nothing to learn from, or nothing to score.

    Args:
        folder: the folder of test files.
        seed: which premises are drawn, and held out to choose the strength.
        pairs: how many pairs to learn from and to choose with; 0 for all.

    Raises:
        DataError: if a file is damaged, lacks a column, or has nothing to tell apart.
    """
    learnt = find_first_test_file(folder, SNLI_TRAIN)
    scored = find_first_test_file(folder, SNLI_SCORED)
    if learnt is None or scored is None:
        return None
    train, skipped = read_examples(learnt, _SNLI_LAYOUT, TRAIN)
    test, skipped_too = read_examples(scored, _SNLI_LAYOUT, TEST)
    drawn = train[TRAIN] if pairs == 0 else draw(train[TRAIN], pairs, seed)
    kept, held = hold_out(drawn, seed)
    few = len(drawn) < len(train[TRAIN])
    if few and (missing := _absent_labels(train[TRAIN], kept, held)):
        raise DataError(
            f"SNLI: the {len(drawn)} pairs that were drawn hold no {missing} to learn from and to choose "
            f"with; found --snli-pairs {pairs}: give more, or 0 for all {len(train[TRAIN])}"
        )
    of_test = "" if scored.name.startswith(SNLI_SCORED[0]) else f" (no {SNLI_SCORED[0]}.tsv is there)"
    rest = "" if not few else f" (of {len(train[TRAIN])}; --snli-pairs 0 takes all)"
    remark = (
        f"learnt from {len(kept)} pairs of {learnt.name}, {len(held)} others chose C{rest}; "
        f"scored on {scored.name}{of_test}"
    )
    return LabelledSet(
        "snli",
        "SNLI",
        {TRAIN: kept, DEV: held, **test},
        pairs=entailment_features,
        skipped=Counter(skipped) + Counter(skipped_too),
        remarks=[remark],
        files=(learnt, scored),
    )


def _absent_labels(whole: Examples, *parts: Examples) -> str:
    """Return the labels of ``whole`` that one of ``parts`` lacks, for messages; "" where there is none."""
    absent = {label for part in parts for label in set(whole.labels) - set(part.labels)}
    return ", ".join(map(repr, sorted(absent)))


def draw(examples: Examples, pairs: int, seed: int) -> Examples:
    """Return ``pairs`` pairs or a few more, those of whole premises, in the order of the file."""
    premises = sorted({texts[0] for texts in examples.texts})
    count = Counter(texts[0] for texts in examples.texts)
    order = np.random.default_rng(seed).permutation(len(premises)).tolist()
    chosen: set[str] = set()
    found = 0
    for place in order:
        if found >= pairs:
            break
        chosen.add(premises[place])
        found += count[premises[place]]
    return _those(examples, chosen, inside=True)


def hold_out(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Return the pairs to learn from and those of held-out premises: no premise is in both."""
    premises = sorted({texts[0] for texts in examples.texts})
    count = max(1, round(HELD_OUT * len(premises)))
    drawn = np.random.default_rng(seed).choice(len(premises), count, replace=False)
    chosen = {premises[place] for place in drawn.tolist()}

    return _those(examples, chosen, inside=False), _those(examples, chosen, inside=True)


def _those(examples: Examples, premises: set[str], *, inside: bool) -> Examples:
    rows = [row for row, texts in enumerate(examples.texts) if (texts[0] in premises) == inside]
    return Examples(tuple(examples.texts[row] for row in rows), tuple(examples.labels[row] for row in rows))


def read(request: Request) -> ClassificationTask:
    """Read the sets in the request's folder.

    Raises:
        NotThereError: if it holds none of the sets.
        DataError: if no folder was given, or a set cannot be read.
    """
    folder = request.folder("nli")
    files = {
        "SICK-E": f"{SICK}.tsv",
        "SNLI": f"{' or '.join(f'{stem}.tsv' for stem in SNLI_TRAIN)}, to be scored on "
        + " or ".join(f"{stem}.tsv" for stem in SNLI_SCORED),
    }
    loaded = {"SICK-E": load_sick(folder), "SNLI": load_snli(folder, request.seed, request.snli_pairs)}
    sets = [one for one in loaded.values() if one is not None]
    if not sets:
        raise NotThereError(
            f"{folder} holds none of the NLI files: looked for {'; '.join(files.values())}, "
            "each also with .gz"
        )
    missing = {label: files[label] for label, one in loaded.items() if one is None}
    return ClassificationTask(folder, sets, missing, request.seed, request.progress)
