"""Transfer: what a linear classifier reads off frozen sentence vectors, on the seven sets of SentEval.

Tab-separated files with a header line and no quoting, columns ``label, text`` (MR, CR, SUBJ, MPQA), with
``split`` (TREC, SST2) and ``text2`` (MRPC). MR, CR, SUBJ and MPQA are scored by nested ten-fold
cross-validation; TREC and MRPC on their test examples, with ten folds of the training examples to choose the
strength; SST2 on its test examples, with its dev examples to choose it. SST2 learns from the phrases of
GLUE's training file, or from whole sentences, which are a tenth as many. MRPC has F1 beside its accuracy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from distill.evaluation.classification import ALL, DEV, TEST, TRAIN, ClassificationTask, LabelledSet
from distill.evaluation.classifier import pair_features
from distill.evaluation.labelled import Layout, read_examples
from distill.evaluation.tasks import NotThereError, Request
from distill.evaluation.testset import find_first_test_file

SST2_PHRASES, SST2_SENTENCES = "glue_sst2", "senteval_sst2_sentences"
_MRPC = "mrpc"

_SPLIT = Layout(split="split", parts={TRAIN: ("train",), TEST: ("test",)})
_SPLIT_WITH_DEV = Layout(split="split", parts={TRAIN: ("train",), DEV: ("dev",), TEST: ("test",)})
# The official training examples, of which some files set 500 apart.
_SPLIT_PAIRS = Layout(
    texts=("text", "text2"), split="split", parts={TRAIN: ("train", "val", "dev"), TEST: ("test",)}
)


@dataclass(frozen=True)
class _Source:
    """Where a set lies.

    Attributes:
        label: how tables call the set.
        stems: file names without ending; the first that is there is read.
        layout: how examples lie in them.
    """

    label: str
    stems: tuple[str, ...]
    layout: Layout = field(default_factory=Layout)

    @property
    def files(self) -> str:
        """The files, for messages."""
        return " or ".join(f"{stem}.tsv" for stem in self.stems)


TRANSFER_SETS: dict[str, _Source] = {
    "mr": _Source("MR", ("senteval_mr",)),
    "cr": _Source("CR", ("senteval_cr",)),
    "subj": _Source("SUBJ", ("senteval_subj",)),
    "mpqa": _Source("MPQA", ("senteval_mpqa",)),
    "sst2": _Source("SST2", (SST2_PHRASES, SST2_SENTENCES), _SPLIT_WITH_DEV),
    "trec": _Source("TREC", ("senteval_trec",), _SPLIT),
    _MRPC: _Source("MRPC", ("senteval_mrpc",), _SPLIT_PAIRS),
}
"""The sets in the field's order."""


def load_transfer(folder: Path, name: str, *, sst2_sentences: bool = False) -> LabelledSet | None:
    """Read the set ``name``, a key of :data:`TRANSFER_SETS`; None where its file is not there.

    Args:
        folder: the folder of test files.
        name: which set.
        sst2_sentences: learn SST2 from whole sentences, even where the phrases are there.

    Raises:
        DataError: if the file is damaged, lacks a column or a part, or has nothing to tell apart.
    """
    source = TRANSFER_SETS[name]
    stems = [stem for stem in source.stems if not (sst2_sentences and stem == SST2_PHRASES)]
    path = find_first_test_file(folder, stems)
    if path is None:
        return None
    parts, skipped = read_examples(path, source.layout, ALL)
    remarks = []
    if path.name.startswith(SST2_SENTENCES):
        remarks.append("learnt from whole sentences only; published figures learn from phrases as well")
    return LabelledSet(
        name=name,
        label=source.label,
        parts=parts,
        pairs=pair_features if name == _MRPC else None,
        positive="1" if name == _MRPC else None,
        skipped=skipped,
        remarks=remarks,
        files=(path,),
    )


def read(request: Request) -> ClassificationTask:
    """Read the sets in the request's folder.

    Raises:
        NotThereError: if it holds none of the sets.
        DataError: if no folder was given, or a set cannot be read.
    """
    folder = request.folder("transfer")
    loaded = {
        name: load_transfer(folder, name, sst2_sentences=request.sst2_sentences) for name in TRANSFER_SETS
    }
    sets = [one for one in loaded.values() if one is not None]
    if not sets:
        files = ", ".join(source.files for source in TRANSFER_SETS.values())
        raise NotThereError(
            f"{folder} holds none of the transfer files: looked for {files}, each also with .gz"
        )
    absent = [TRANSFER_SETS[name] for name, one in loaded.items() if one is None]
    missing = {source.label: source.files for source in absent}
    return ClassificationTask(folder, sets, missing, request.seed, request.progress)
