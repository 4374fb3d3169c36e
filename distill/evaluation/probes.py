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
from dataclasses import dataclass, field, replace
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
    skipped_note,
)
from distill.evaluation.logistic import FOLDS, Answers, Labels, dev_chosen, nested_folds, train_folds
from distill.evaluation.models import Encode, Vectors
from distill.evaluation.result import Figure, Outcomes, SuiteResult
from distill.evaluation.task import Encoded, Items, NotThereError, SuiteFile, SuiteOptions, register_suite

SNLI_HELD_OUT = 0.1
"""Share of SNLI's training premises whose pairs choose the strength."""

ALL, TRAIN, DEV, TEST = "all", "train", "dev", "test"

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
_SNLI_COLUMNS = ("label", "premise", "hypothesis")
_NLI = {"SICK-E": ("sick",), "SNLI": (f"{' or '.join(_SNLI_TRAIN)} with {' or '.join(_SNLI_SCORED)}",)}


def text_features(vectors: Vectors) -> Vectors:
    """Return the features of single texts: their vectors."""
    return vectors


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
        features: makes the features of an example from the vectors of its texts; of pairs from both sides.
        positive: label whose F1 stands beside the accuracy.
        skipped: reason -> rows left out.
        remarks: notes on how the set was made.
    """

    name: str
    label: str
    parts: Mapping[str, Examples]
    features: Callable[..., Vectors] = text_features
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
        if unknown := len(set(self.scored.labels) - set(self.learnt.labels)):
            lines.append(f"{unknown} labels of scored examples occur in none to learn from: counted as wrong")
        for part, examples in self.parts.items():
            if repeats := count_repeats(examples.texts):
                lines.append(f"{part}: {repeats} of {len(examples)} examples are repeated")
        if self.scored is not self.learnt:
            known = {tuple(map(plain_text, texts)) for texts in self.learnt.texts}
            if leaked := sum(tuple(map(plain_text, texts)) in known for texts in self.scored.texts):
                lines.append(f"{leaked} of {len(self.scored)} scored examples are also learnt from")
        return [*skipped_note(self.label, self.skipped), *(f"{self.label}: {line}" for line in lines)]


def score_probe(
    probe: Probe, pick: Callable[[Sequence[str]], Vectors], seed: int
) -> tuple[Figure, tuple[float, ...]]:
    """Score one set; ``pick`` gives the vectors of texts. Return the chosen strengths as well."""
    names = sorted({label for examples in probe.parts.values() for label in examples.labels})
    number = {label: place for place, label in enumerate(names)}
    parts = {}
    for part, examples in probe.parts.items():
        sides = [pick(side) for side in zip(*examples.texts, strict=True)]
        parts[part] = probe.features(*sides), np.array([number[one] for one in examples.labels])
    predicted, strengths = _predict(parts, seed)
    gold = parts[ALL if ALL in parts else TEST][1]
    right = 100.0 * (predicted == gold)
    others = {}
    if (positive := number.get(probe.positive or "")) is not None:
        so, said = gold == positive, predicted == positive
        if (so | said).any():
            others["f1"] = 100 * 2 * float((so & said).sum()) / float(so.sum() + said.sum())
    figure = Figure(
        value=float(right.mean()),
        measure="accuracy",
        items=len(right),
        others=others,
        outcomes=Outcomes(right, texts=items_digest(probe.scored.texts)),
        label=probe.label,
        skipped=sum(probe.skipped.values()),
    )
    return figure, strengths


def _predict(parts: Mapping[str, tuple[Vectors, Labels]], seed: int) -> Answers:
    if ALL in parts:
        return nested_folds(*parts[ALL], seed)
    if DEV in parts:
        return dev_chosen(*parts[TRAIN], *parts[DEV], parts[TEST][0], seed)
    return train_folds(*parts[TRAIN], parts[TEST][0], seed)


def read_transfer(data: Path) -> list[Probe]:
    """Read the sets of ``transfer`` in a folder.

    Raises:
        NotThereError: if it holds none of them.
        DataError: if a set cannot be read, or has too few labels to separate.
    """
    probes = []
    for name, (stems, texts, parts) in _TRANSFER.items():
        if (path := find_file(data, *stems)) is None:
            continue
        examples, skipped = read_examples(path, texts, split="split" if parts else None, parts=parts)
        probe = Probe(name, name.upper(), examples, skipped=skipped)
        if name == "mrpc":
            probe = replace(probe, features=pair_features, positive="1")
        if path.name.startswith("senteval_sst2"):
            remark = "learnt from whole sentences; published figures learn from phrases as well"
            probe = replace(probe, remarks=[remark])
        probes.append(probe)
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
        DataError: if a set cannot be read, or has too few labels to separate.
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
        raise NotThereError(f"{data} holds no sick.tsv, and no SNLI ({_NLI['SNLI'][0]}), each also .gz")
    return probes


def _read_snli(learnt: Path, scored: Path, seed: int, pairs: int) -> Probe:
    train, skipped = read_examples(learnt, _SNLI_COLUMNS[1:])
    test, skipped_too = read_examples(scored, _SNLI_COLUMNS[1:])
    whole = train[ALL]
    drawn = draw_pairs(whole, pairs, seed) if pairs else whole
    kept, held = hold_out(drawn, seed)
    rest = f" (of {len(whole)}; --snli-pairs 0 takes all)" if len(drawn) < len(whole) else ""
    remark = f"learnt from {len(kept)} pairs of {learnt.name}, {len(held)} chose C{rest}"
    parts = {TRAIN: kept, DEV: held, TEST: test[ALL]}
    remarks = [f"{remark}; scored on {scored.name}"]
    return Probe("snli", "SNLI", parts, entailment_features, skipped=skipped + skipped_too, remarks=remarks)


def draw_pairs(examples: Examples, pairs: int, seed: int) -> Examples:
    """Return ``pairs`` pairs or a few more, those of whole premises, in the order of the file."""
    count = Counter(texts[0] for texts in examples.texts)
    premises = sorted(count)
    order = np.random.default_rng(seed).permutation(len(premises))
    # Premises are taken until those before hold enough pairs.
    before = np.cumsum([0, *(count[premises[place]] for place in order)])[:-1]
    return _of_premises(examples, {premises[place] for place in order[before < pairs]}, inside=True)


def hold_out(examples: Examples, seed: int) -> tuple[Examples, Examples]:
    """Return the pairs to learn from and those of held-out premises; no premise is in both."""
    premises = sorted({texts[0] for texts in examples.texts})
    count = max(1, round(SNLI_HELD_OUT * len(premises)))
    drawn = np.random.default_rng(seed).choice(len(premises), count, replace=False)
    chosen = {premises[place] for place in drawn}
    return _of_premises(examples, chosen, inside=False), _of_premises(examples, chosen, inside=True)


def _of_premises(examples: Examples, premises: set[str], *, inside: bool) -> Examples:
    rows = [row for row, texts in enumerate(examples.texts) if (texts[0] in premises) == inside]
    return Examples([examples.texts[row] for row in rows], [examples.labels[row] for row in rows])


def _items(probes: Sequence[Probe]) -> Items:
    return {probe.name: probe.scored.texts for probe in probes}


@register_suite(
    "transfer",
    summary="classifiers on frozen vectors: MR, CR, SUBJ, MPQA, SST2, TREC, MRPC",
    files=[
        SuiteFile(stem, (*(["split"] if parts else []), "label", *texts))
        for stems, texts, parts in _TRANSFER.values()
        for stem in stems
    ],
    items=lambda data, options: _items(read_transfer(data)),
    options=("seed",),
)
def transfer(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score the seven sets of SentEval."""
    probes = read_transfer(data)
    return _score(encode, data, probes, {name.upper(): one[0] for name, one in _TRANSFER.items()}, options)


@register_suite(
    "nli",
    summary="classifiers on frozen vectors of two sentences: SICK-E, SNLI",
    files=[
        SuiteFile("sick", ("subset", "sentence1", "sentence2", "entailment")),
        *(SuiteFile(stem, _SNLI_COLUMNS) for stem in (*_SNLI_TRAIN, *_SNLI_SCORED)),
    ],
    items=lambda data, options: _items(read_nli(data, options.seed, options.snli_pairs)),
    options=("seed", "snli_pairs"),
)
def nli(encode: Encode, data: Path, options: SuiteOptions) -> SuiteResult:
    """Score SICK-E and SNLI."""
    return _score(encode, data, read_nli(data, options.seed, options.snli_pairs), _NLI, options)


def _score(
    encode: Encode,
    data: Path,
    probes: Sequence[Probe],
    files: Mapping[str, Sequence[str]],
    options: SuiteOptions,
) -> SuiteResult:
    figures, chosen, sentences = {}, [], 0
    notes = [note for probe in probes for note in probe.notes()]
    for probe in probes:
        examples = [texts for part in probe.parts.values() for texts in part.texts]
        vectors = Encoded(encode, (text for texts in examples for text in texts))
        sentences += len(vectors)
        options.progress.phase("classifier", 1, "sets")
        options.progress.note(probe.label)
        figures[probe.name], strengths = score_probe(probe, vectors, options.seed)
        ends = dict.fromkeys((min(strengths), max(strengths)))
        chosen.append(f"{probe.label} {' to '.join(f'{one:.2g}' for one in ends)}")
        options.progress.advance()
    missing = [label for label in files if label not in {probe.label for probe in probes}]
    if missing:
        names = ", ".join(f"{label} ({' or '.join(files[label])})" for label in missing)
        notes.insert(0, f"average over {len(probes)} of {len(files)} sets; not found: {names}")
    notes.append(f"C chosen: {', '.join(chosen)}")
    settings = {"data": str(data), "sentences": sentences, "seed": options.seed}
    return SuiteResult(figures, notes=tuple(notes), settings=settings, missing=tuple(missing))
