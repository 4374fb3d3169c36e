"""Examination of a cache: every section, and the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from embedcache.cache import Cache
from embedcache.corpus.texts import find_texts
from embedcache.doctor.codec_loss import CodecLoss, compare_codecs
from embedcache.doctor.deep import check_deep, sample_texts
from embedcache.doctor.findings import LEVELS, Finding, Level
from embedcache.doctor.geometry import measure_geometry
from embedcache.doctor.overlap import find_overlap, read_evaluation_sets
from embedcache.doctor.scan import DistinctRows, JudgedVectors, scan_corpus, scan_vectors
from embedcache.errors import InputError
from embedcache.keys import KeyArray
from embedcache.live import Computing
from embedcache.progress import NO_PROGRESS, Progress
from embedcache.sampling import KeySample

CODEC_SAMPLE = 10_000


@dataclass(frozen=True)
class Diagnosis:
    """Result of an examination.

    Attributes:
        cache: the cache's folder.
        teacher: name of the teacher.
        contract_id: sha256 of its contract.
        stored_as: codecs of the stored vectors.
        findings: figures with their verdicts, by section.
        codecs: size and loss of each codec; empty unless they were compared.
    """

    cache: str
    teacher: str
    contract_id: str
    stored_as: tuple[str, ...]
    findings: tuple[Finding, ...]
    codecs: tuple[CodecLoss, ...] = ()

    @property
    def worst(self) -> Level:
        """The worst level."""
        return max((finding.level for finding in self.findings), key=LEVELS.index, default="ok")

    @property
    def has_wrong_vectors(self) -> bool:
        """True if the deep check found vectors that are not the teacher's."""
        return any(one.section == "deep" and one.level == "bad" for one in self.findings)

    def to_json(self) -> dict[str, object]:
        """Return the diagnosis as a JSON object."""
        return {**asdict(self), "worst": self.worst}


def examine(
    cache: Cache | str | Path,
    *,
    teacher: str | None = None,
    corpus: str | None = None,
    evaluation_sets: Sequence[str | Path] = (),
    deep: int = 0,
    codecs: bool = False,
    sample: int = 20_000,
    seed: int = 0,
    computing: Computing | None = None,
    progress: Progress = NO_PROGRESS,
) -> Diagnosis:
    """Judge a cache before a student is trained on it.

    Args:
        cache: the cache or its folder.
        teacher: name of the teacher; may be left out where there is one.
        corpus: judge the vectors of this corpus; default: all vectors and all corpora.
        evaluation_sets: files and folders of texts that must not be trained on.
        deep: number of texts to encode again with the live teacher.
        codecs: compare the codecs.
        sample: vectors whose geometry is measured; time grows with its square.
        seed: seed of all samples.
        computing: how to run the teacher for the deep check.
        progress: receives phases and rows.

    Raises:
        InputError: if a name is unknown, there are no vectors, or an evaluation set cannot be read.
        TeacherError, ContractMismatchError: if the teacher of the deep check cannot be loaded, or is another.
        CorruptCacheError: if the cache is damaged.
    """
    opened = cache if isinstance(cache, Cache) else Cache(cache)
    cached = opened.teacher(teacher)
    corpora = opened.corpora() if corpus is None else [opened.corpus(corpus)]
    sets = read_evaluation_sets(evaluation_sets)
    if sets and not corpora:
        raise InputError(f"{opened.folder}: no corpus to compare with evaluation sets")
    store = opened.store(cached.contract)
    if not len(store):
        raise InputError(f"{opened.folder}: no vectors of {cached.name!r}. Run 'embedcache build' first.")
    views = [view for one in corpora for view in one.views()]

    def texts_of(keys: KeyArray) -> list[str]:
        texts = find_texts(keys, [*corpora, *views])
        names = (f"(key {key.tobytes().hex()})" for key in keys)
        return [name if text is None else text for name, text in zip(names, texts, strict=True)]

    checked = []
    if deep:
        texts = sample_texts(store, [*corpora, *views], deep, seed)
        checked = [check_deep(opened, cached, texts, computing=computing, progress=progress)]
    rows = [DistinctRows(one) for one in corpora]
    findings: list[Finding] = []
    for one in rows:
        findings += scan_corpus(one, store, may_be_foreign=len(rows) > 1, progress=progress)
    judged = JudgedVectors(store, rows[0] if corpus is not None else None)
    scanned, drawn = scan_vectors(judged, texts_of, KeySample(sample, seed), progress)
    vectors = store.vectors(store.locate(drawn))
    progress.phase("measure geometry")
    findings += [*scanned, *measure_geometry(vectors, drawn, texts_of, seed=seed)]
    # Views are trained on as well.
    others = [DistinctRows(view) for view in views] if sets else []
    findings += find_overlap([*rows, *others], sets, progress)
    losses = compare_codecs(vectors[:CODEC_SAMPLE], seed=seed, progress=progress) if codecs else ()
    stored_as = sorted({shard.header.codec for shard in store.shards})
    return Diagnosis(
        str(opened.folder),
        cached.name,
        cached.contract.id,
        tuple(stored_as),
        (*findings, *checked),
        tuple(losses),
    )
