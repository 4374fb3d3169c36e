"""Probes: accuracy of logistic regression on frozen vectors, by the protocols of SentEval.

Conneau and Kiela, "SentEval: An Evaluation Toolkit for Universal Sentence Representations", LREC 2018. MR,
CR, SUBJ and MPQA are scored by nested ten-fold cross-validation. TREC and MRPC are scored on their test
examples, with the strength of the penalty chosen in ten folds of the training examples; SST2 and SICK-E with
their dev examples. SNLI is learnt from pairs drawn by whole premises, of which a tenth choose the strength,
so the file that is scored chooses nothing. Strengths are never chosen on scored examples.

Unlike in SentEval, features are standardised on the examples that a classifier learns from, so one grid of
strengths serves long vectors and short ones. The stronger penalty wins a tie. Features of pairs are
``[|u - v| ; u * v]``, of SNLI ``[u ; v ; u * v ; |u - v|]`` (Conneau et al., InferSent, EMNLP 2017).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from distill.errors import DataError
from distill.evaluation.files import (
    Examples,
    count_repeats,
    find_file,
    items_digest,
    plain_text,
    read_examples,
    require_folder,
    skipped_note,
)
from distill.evaluation.logistic import FOLDS, Answers, Vectors, dev_chosen, nested_folds, train_folds
from distill.evaluation.models import Encode
from distill.evaluation.result import Figure, Outcomes, SuiteResult
from distill.evaluation.task import Items, NotThereError, SuiteFile, SuiteOptions, register_suite

HELD_OUT = 0.1
"""Share of SNLI's training premises whose pairs choose the strength."""

ALL, TRAIN, DEV, TEST = "all", "train", "dev", "test"


def pair_features(left: Vectors, right: Vectors) -> Vectors:
    """Return ``[|u - v| ; u * v]`` of pairs, each (n, d), as (n, 2 d)."""
    return np.hstack([np.abs(left - right), left * right])


def entailment_features(premises: Vectors, hypotheses: Vectors) -> Vectors:
    """Return ``[u ; v ; u * v ; |u - v|]`` of pairs, each (n, d), as (n, 4 d)."""
    return np.hstack([premises, hypotheses, premises * hypotheses, np.abs(premises - hypotheses)])


@dataclass(frozen=True)
class Probe:
    """A labelled set.

    Attributes:
        name: key in results.
        label: name in tables.
        parts: its examples: ``all``, or ``train`` and ``test``, with ``dev`` or without.
        pairs: makes the features of pairs from the vectors of both sides; None: an example is one text.
        positive: label whose F1 stands beside the accuracy.
        skipped: reason -> rows left out.
        remarks: notes on how the set was made.
    """

    name: str
    label: str
    parts: Mapping[str, Examples]
    pairs: Callable[[Vectors, Vectors], Vectors] | None = None
    positive: str | None = None
    skipped: Mapping[str, int] = field(default_factory=dict)
    remarks: Sequence[str] = ()

    def __post_init__(self) -> None:
        least = 1 if DEV in self.parts else FOLDS
        counts = Counter(self.learnt.labels)
        if sum(count >= least for count in counts.values()) < 2:
            found = ", ".join(f"{label!r} {count}" for label, count in counts.most_common(5))
            raise DataError(f"{self.label}: two labels need at least {least} examples each (found: {found})")

    @property
    def learnt(self) -> Examples:
        """Examples that classifiers learn from."""
        return self.parts[ALL if ALL in self.parts else TRAIN]

    @property
    def scored(self) -> Examples:
        """Examples whose answers count."""
        return self.parts[ALL if ALL in self.parts else TEST]

    def notes(self) -> list[str]:
        """Return notes on rows left out, labels that cannot be learnt, repeated and leaked examples."""
        lines = list(self.remarks)
        if unknown := sum(label not in set(self.learnt.labels) for label in set(self.scored.labels)):
            lines.append(f"{unknown} labels of scored examples occur in none to learn from: counted as wrong")
        for part, examples in self.parts.items():
            if repeats := count_repeats(examples.texts):
                lines.append(f"{part}: {repeats} of {len(examples)} examples occur before")
        if self.scored is not self.learnt:
            known = {tuple(map(plain_text, texts)) for texts in self.learnt.texts}
            leaked = sum(tuple(map(plain_text, texts)) in known for texts in self.scored.texts)
            if leaked:
                lines.append(f"{leaked} of {len(self.scored)} scored examples are also learnt from")
        return [*skipped_note(self.label, self.skipped), *(f"{self.label}: {line}" for line in lines)]


def score_probe(probe: Probe, pick: Callable[[Sequence[str]], Vectors], seed: int) -> tuple[Figure, Answers]:
    """Score one set; ``pick`` gives the vectors of texts."""
    names = sorted({label for examples in probe.parts.values() for label in examples.labels})
    number = {label: place for place, label in enumerate(names)}
    labels = {
        part: np.array([number[one] for one in examples.labels]) for part, examples in probe.parts.items()
    }
    features = {}
    for part, examples in probe.parts.items():
        sides = [pick(side) for side in zip(*examples.texts, strict=True)]
        features[part] = sides[0] if probe.pairs is None else probe.pairs(*sides)
    if ALL in probe.parts:
        answers = nested_folds(features[ALL], labels[ALL], seed)
    elif DEV in probe.parts:
        learnt, dev = (features[TRAIN], labels[TRAIN]), (features[DEV], labels[DEV])
        answers = dev_chosen(*learnt, *dev, features[TEST], seed)
    else:
        answers = train_folds(features[TRAIN], labels[TRAIN], features[TEST], seed)
    gold = labels[ALL if ALL in probe.parts else TEST]
    right = 100.0 * (answers.predicted == gold)
    others = {}
    if probe.positive is not None:
        positive = number.get(probe.positive, -1)
        so, said = gold == positive, answers.predicted == positive
        if (so | said).any():
            others["f1"] = 100 * 2 * float((so & said).sum()) / float(so.sum() + said.sum())
    figure = Figure(
        value=float(right.mean()),
        measure="accuracy",
        items=len(right),
        others=others,
        outcomes=Outcomes.of_values(right, items_digest(probe.scored.texts)),
        label=probe.label,
        skipped=sum(probe.skipped.values()),
    )
    return figure, answers


def read_transfer(data: Path, *, sst2_sentences: bool = False) -> list[Probe]:
    """Read the sets of ``transfer`` in a folder.

    Raises:
        NotThereError: if it holds none of them.
        DataError: if a set cannot be read, or has nothing to tell apart.
    """
    probes = []
    for name, (stems, texts, parts) in _TRANSFER.items():
        path = find_file(data, *(stems[1:] if sst2_sentences and len(stems) > 1 else stems))
        if path is None:
            continue
        examples, skipped = read_examples(path, texts, split="split" if parts else None, parts=parts)
        whole = path.name.startswith("senteval_sst2")
        probes.append(
            Probe(
                name,
                name.upper(),
                examples,
                pair_features if name == "mrpc" else None,
                "1" if name == "mrpc" else None,
                skipped,
                ["learnt from whole sentences; published figures learn from phrases as well"]
                if whole
                else (),
            )
        )
    if not probes:
        files = ", ".join(" or ".join(f"{stem}.tsv" for stem in stems) for stems, _, _ in _TRANSFER.values())
        raise NotThereError(f"{data} holds none of the transfer files ({files}, each also .gz)")
    return probes


def read_nli(data: Path, seed: int, pairs: int) -> list[Probe]:
    """Read the sets of ``nli`` in a folder.

    Args:
        data: the folder.
        seed: choice of SNLI's premises.
        pairs: pairs that SNLI is learnt from, and chosen with; 0 for all.

    Raises:
        NotThereError: if it holds neither.
        DataError: if a set cannot be read, or has nothing to tell apart.
    """
    probes = []
    if sick := find_file(data, "sick"):
        splits = {TRAIN: ("train",), DEV: ("trial",), TEST: ("test",)}
        examples, skipped = read_examples(sick, ("sentence1", "sentence2"), "entailment", "subset", splits)
        probes.append(Probe("sicke", "SICK-E", examples, pair_features, skipped=skipped))
    learnt, scored = find_file(data, *_SNLI_TRAIN), find_file(data, *_SNLI_SCORED)
    if learnt and scored:
        probes.append(_read_snli(learnt, scored, seed, pairs))
    if not probes:
        raise NotThereError(f"{data} holds no sick.tsv, and no SNLI ({_SNLI_FILES}), each also .gz")
    return probes


def _read_snli(learnt: Path, scored: Path, seed: int, pairs: int) -> Probe:
    columns = ("premise", "hypothesis")
    train, skipped = read_examples(learnt, columns)
    test, skipped_too = read_examples(scored, columns)
    whole = train[ALL]
    drawn = draw_pairs(whole, pairs, seed) if pairs else whole
    kept, held = hold_out(drawn, seed)
    if len(drawn) < len(whole) and (absent := set(whole.labels) - (set(kept.labels) & set(held.labels))):
        raise DataError(
            f"SNLI: --snli-pairs {pairs} draws no {', '.join(map(repr, sorted(absent)))} to learn from or to "
            f"choose with; give more, or 0 for all {len(whole)}"
        )
    rest = f" (of {len(whole)}; --snli-pairs 0 takes all)" if len(drawn) < len(whole) else ""
    no_test = "" if scored.name.startswith("snli_test") else " (no snli_test.tsv)"
    remark = f"learnt from {len(kept)} pairs of {learnt.name}, {len(held)} chose C{rest}"
    remark += f"; scored on {scored.name}{no_test}"
    parts = {TRAIN: kept, DEV: held, TEST: test[ALL]}
    return Probe("snli", "SNLI", parts, entailment_features, skipped=skipped + skipped_too, remarks=[remark])


def draw_pairs(examples: Examples, pairs: int, seed: int) -> Examples:
    """Return ``pairs`` pairs or a few more, those of whole premises, in the order of the file."""
    count = Counter(texts[0] for texts in examples.texts)
    premises = sorted(count)
    chosen: set[str] = set()
    found = 0
    for place in np.random.default_rng(seed).permutation(len(premises)).tolist():
        if found >= pairs:
            break
        chosen.add(premises[place])
        found += count[premises[place]]
    return _of_premises(examples, chosen, inside=True)


def hold_out(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Return the pairs to learn from and those of held-out premises; no premise is in both."""
    premises = sorted({texts[0] for texts in examples.texts})
    count = max(1, round(HELD_OUT * len(premises)))
    drawn = np.random.default_rng(seed).choice(len(premises), count, replace=False)
    chosen = {premises[place] for place in drawn.tolist()}
    return _of_premises(examples, chosen, inside=False), _of_premises(examples, chosen, inside=True)


def _of_premises(examples: Examples, premises: set[str], *, inside: bool) -> Examples:
    rows = [row for row, texts in enumerate(examples.texts) if (texts[0] in premises) == inside]
    return Examples([examples.texts[row] for row in rows], [examples.labels[row] for row in rows])


_Parts = dict[str, tuple[str, ...]]
_SPLIT: _Parts = {TRAIN: ("train",), TEST: ("test",)}
_WITH_DEV: _Parts = {TRAIN: ("train",), DEV: ("dev",), TEST: ("test",)}
_WITH_VAL: _Parts = {**_SPLIT, TRAIN: ("train", "val", "dev")}
# Set -> files of which the first that exists is read, columns of the texts, parts.
_TRANSFER: dict[str, tuple[tuple[str, ...], tuple[str, ...], _Parts | None]] = {
    "mr": (("senteval_mr",), ("text",), None),
    "cr": (("senteval_cr",), ("text",), None),
    "subj": (("senteval_subj",), ("text",), None),
    "mpqa": (("senteval_mpqa",), ("text",), None),
    "sst2": (("glue_sst2", "senteval_sst2_sentences"), ("text",), _WITH_DEV),
    "trec": (("senteval_trec",), ("text",), _SPLIT),
    # Some files set 500 of the official training examples apart.
    "mrpc": (("senteval_mrpc",), ("text", "text2"), _WITH_VAL),
}
_SNLI_TRAIN, _SNLI_SCORED = ("snli_train", "snli_train100k"), ("snli_test", "snli_dev", "snli_dev_tokenized")
_SNLI_FILES = f"{' or '.join(_SNLI_TRAIN)} with {' or '.join(_SNLI_SCORED)}"
_SNLI_COLUMNS = ("label", "premise", "hypothesis")


@register_suite(
    "transfer",
    summary="classifiers on frozen vectors: MR, CR, SUBJ, MPQA, SST2, TREC, MRPC",
    files=[
        SuiteFile(stem, (*(["split"] if parts else []), "label", *texts), (name.upper(),))
        for name, (stems, texts, parts) in _TRANSFER.items()
        for stem in stems
    ],
    items=lambda data, options: _items(
        read_transfer(require_folder(data, "transfer"), sst2_sentences=options.sst2_sentences)
    ),
    options=("seed", "sst2_sentences"),
)
def transfer(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score the seven sets of SentEval."""
    probes = read_transfer(require_folder(data, "transfer"), sst2_sentences=options.sst2_sentences)
    missing = {name.upper(): stems for name, (stems, _, _) in _TRANSFER.items()}
    return _score(encode, data, probes, missing, options)


@register_suite(
    "nli",
    summary="classifiers on frozen vectors of two sentences: SICK-E, SNLI",
    files=[
        SuiteFile("sick", ("subset", "sentence1", "sentence2", "entailment"), ("SICK-E",)),
        *(SuiteFile(stem, _SNLI_COLUMNS, ("SNLI",), "to learn from") for stem in _SNLI_TRAIN),
        *(
            SuiteFile(stem, _SNLI_COLUMNS, ("SNLI",), "the first that exists is scored")
            for stem in _SNLI_SCORED
        ),
    ],
    items=lambda data, options: _items(
        read_nli(require_folder(data, "nli"), options.seed, options.snli_pairs)
    ),
    options=("seed", "snli_pairs"),
)
def nli(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score SICK-E and SNLI."""
    probes = read_nli(require_folder(data, "nli"), options.seed, options.snli_pairs)
    return _score(encode, data, probes, {"SICK-E": ("sick",), "SNLI": (_SNLI_FILES,)}, options)


def _items(probes: Sequence[Probe]) -> Items:
    return {probe.name: probe.scored.texts for probe in probes}


def _score(
    encode: Encode,
    data: Path,
    probes: Sequence[Probe],
    files: Mapping[str, Sequence[str]],
    options: SuiteOptions,
) -> SuiteResult:
    texts = list(
        dict.fromkeys(
            text
            for one in probes
            for part in one.parts.values()
            for example in part.texts
            for text in example
        )
    )
    vectors, row = encode(texts), {text: number for number, text in enumerate(texts)}
    figures, strengths = {}, []
    notes = [note for probe in probes for note in probe.notes()]
    for done, probe in enumerate(probes):
        options.progress(f"classifiers: {probe.label}", done, len(probes))
        figures[probe.name], answers = score_probe(
            probe, lambda side: vectors[[row[text] for text in side]], options.seed
        )
        low, high = min(answers.strengths), max(answers.strengths)
        strengths.append(f"{probe.label} {low:.2g}" + ("" if low == high else f" to {high:.2g}"))
        if answers.unfinished:
            notes.append(f"{probe.label}: {answers.unfinished} fits were stopped before they had converged")
    missing = [label for label in files if label not in {probe.label for probe in probes}]
    if missing:
        names = ", ".join(f"{label} ({' or '.join(files[label])})" for label in missing)
        notes.insert(0, f"average over {len(probes)} of {len(files)} sets; not found: {names}")
    notes.append(f"C chosen: {', '.join(strengths)}")
    settings = {"data": str(data), "sentences": len(texts), "seed": options.seed}
    return SuiteResult(figures, notes=tuple(notes), settings=settings, missing=tuple(missing))
