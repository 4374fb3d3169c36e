"""Examination of a cache, and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from embedcache.cache import Cache
from embedcache.corpus.corpus import find_texts
from embedcache.doctor.codec_loss import CodecLoss, compare_codecs
from embedcache.doctor.deep import LIVE, check_deep, sample_texts
from embedcache.doctor.findings import LEVELS, Finding, Level
from embedcache.doctor.geometry import LEAST_SAMPLE, measure_geometry
from embedcache.doctor.overlap import find_overlap, read_evaluation_sets
from embedcache.doctor.scan import (
    corpus_positions,
    distinct_rows,
    own_positions,
    scan_corpus,
    scan_vectors,
)
from embedcache.errors import InputError
from embedcache.keys import KeyArray
from embedcache.live import Computing
from embedcache.progress import NO_PROGRESS, Progress

CODEC_SAMPLE = 10_000


@dataclass(frozen=True)
class Diagnosis:
    """Result of an examination.

    Attributes:
        cache: the cache's folder.
        teacher: name of the teacher.
        contract_id: sha256 of its contract.
        stored_as: codecs of the stored vectors.
        findings: figures with their verdicts.
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
        return any(one.name == LIVE and one.level == "bad" for one in self.findings)

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
        codecs: compare the codecs, on at least 50 vectors.
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
    views = [view for one in corpora for view in one.views()]
    sets = read_evaluation_sets(evaluation_sets)
    if sets and not corpora:
        raise InputError(f"{opened.folder}: no corpus to compare with evaluation sets")
    store = opened.store(cached.contract)
    rows = [distinct_rows(one) for one in corpora]
    found = [corpus_positions(*one, store, progress) for one in zip(corpora, rows, strict=True)]
    judged = found[0][found[0] >= 0] if corpus is not None else own_positions(store)
    if not len(judged):
        raise InputError(f"{opened.folder}: no vectors of {cached.name!r}. Run 'embedcache build' first.")

    def texts_of(keys: KeyArray) -> list[str]:
        texts = find_texts(keys, [*corpora, *views])
        names = (f"(key {key.tobytes().hex()})" for key in keys)
        return [name if text is None else text for name, text in zip(names, texts, strict=True)]

    checked = []
    if deep:
        texts = sample_texts(store, [*corpora, *views], deep, seed)
        checked = [check_deep(opened, cached, texts, computing=computing, progress=progress)]
    findings: list[Finding] = []
    for one, numbers, positions in zip(corpora, rows, found, strict=True):
        findings += scan_corpus(one, numbers, positions, may_be_foreign=len(corpora) > 1)
    scanned, drawn = scan_vectors(store, judged, texts_of, sample, seed, progress)
    vectors = store.vectors(store.locate(drawn))
    progress.phase("measure geometry")
    findings += [*scanned, *measure_geometry(vectors, drawn, texts_of, seed=seed)]
    # Views are trained on as well.
    others = [(view, distinct_rows(view)) for view in views] if sets else []
    findings += find_overlap([*zip(corpora, rows, strict=True), *others], sets, progress)
    codecs = codecs and len(vectors) >= LEAST_SAMPLE
    losses = compare_codecs(vectors[:CODEC_SAMPLE], seed=seed, progress=progress) if codecs else ()
    stored_as = tuple(sorted({shard.header.codec for shard in store.shards}))
    everything = (*findings, *checked)
    return Diagnosis(
        str(opened.folder), cached.name, cached.contract.id, stored_as, everything, tuple(losses)
    )
