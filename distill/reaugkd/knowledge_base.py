"""Knowledge base in a student's model folder: built from a cache, searched, and added to.

The folder is replaced as a whole. Commands that change it hold a lock on the model's folder.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from scipy.special import softmax

from distill.errors import ConfigError, DataError
from distill.layout import KNOWLEDGE_BASE
from distill.reaugkd.header import CHOSEN, HEADER, INDEX, ROWS, TEXTS, BaseCorpus, Header, damaged
from distill.reaugkd.index import Found, IndexSettings, NeighbourIndex
from distill.reaugkd.soft_labels import stored_vectors
from distill.reaugkd.student import Origin, StudentFolder, open_student
from distill.vectors import unit
from embedcache.cache import Cache, CachedTeacher
from embedcache.corpus.corpus import Corpus
from embedcache.folders import folder_that_appears, locked_folder
from embedcache.fsio import map_regular, write_sealed_json
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray, KeyIndex, first_occurrences, key_array
from embedcache.teacher.load import load_teacher

OnStep = Callable[[str, int, int], None]
"""Called with the name of a step, units done and units in all."""

Probabilities = NDArray[np.float64]


@dataclass(frozen=True)
class KnowledgeBase:
    """Vectors of texts with their teacher's soft labels.

    Attributes:
        header: its description.
        index: the vectors.
        soft_labels: float32, shape (n, c); rows sum to 1.
        keys: dtype ``V16``, shape (n,); keys of the texts.
        texts: the texts; None if they are not kept.
        chosen_keys: keys of the texts that k and beta were chosen on.
    """

    header: Header
    index: NeighbourIndex
    soft_labels: NDArray[np.float32]
    keys: KeyArray
    texts: tuple[str, ...] | None = None
    chosen_keys: KeyArray | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.keys)

    def holds(self, keys: KeyArray) -> NDArray[np.bool_]:
        """Return which texts are in the base, bool of shape (len(keys),)."""
        return _contains(self.keys, keys)

    def weights(self, cosines: NDArray[np.floating]) -> Probabilities:
        """Return neighbours' weights (n, k): the softmax of ``s . z_k / tau`` (ReAugKD, section 3.3)."""
        weights: Probabilities = softmax(cosines.astype(np.float64) / self.header.tau, axis=-1)
        return weights

    def vote(self, found: Found) -> Probabilities:
        """Return the weighted mean of the neighbours' soft labels, float64 of shape (n, c)."""
        rows, cosines = found
        soft = self.soft_labels[rows].astype(np.float64)
        voted: Probabilities = np.einsum("nk,nkc->nc", self.weights(cosines), soft)
        return voted

    @classmethod
    def read(cls, model: Path) -> KnowledgeBase | None:
        """Read the base in a model's folder; None without one. Nothing in it is executed.

        Raises:
            CorruptCacheError: if a file is missing or damaged.
        """
        header = Header.read(model)
        if header is None:
            return None
        try:
            return _read(header, model / KNOWLEDGE_BASE)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            if Header.read(model) == header:
                raise damaged(model / KNOWLEDGE_BASE, error) from error
        return cls.read(model)  # Another process replaced the base meanwhile.

    def write(self, model: Path) -> KnowledgeBase:
        """Write it into a model's folder, in place of an earlier one; return it with its new header.

        Raises:
            StorageError: if it cannot be written; an earlier one stays.
        """
        from safetensors.numpy import save

        files = {
            INDEX: self.index.to_bytes(),
            ROWS: save({"soft_labels": self.soft_labels, "keys": _key_bytes(self.keys)}),
        }
        if self.texts is not None:
            files[TEXTS] = json.dumps(list(self.texts), ensure_ascii=False, indent=0).encode()
        if self.chosen_keys is not None:
            files[CHOSEN] = save({"keys": _key_bytes(self.chosen_keys)})
        header = self.header.model_copy(
            update={
                "rows": len(self),
                "index": self.index.settings,
                "files": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
            }
        )
        with folder_that_appears(model / KNOWLEDGE_BASE, overwrite=True) as folder:
            for name, data in files.items():
                (folder / name).write_bytes(data)
            write_sealed_json(folder / HEADER, header.model_dump(mode="json"))
        return replace(self, header=header)


@dataclass(frozen=True)
class Built:
    """Written knowledge base.

    Attributes:
        base: the base.
        added: rows added.
        repeated: rows left out because their text occurs earlier in the corpus.
        held_out: rows left out because the run held them out.
        known: rows left out because their text is in the base.
        recall: recall of the measured ``ef_search`` on held-out rows; None if it was not measured.
    """

    base: KnowledgeBase
    added: int
    repeated: int
    held_out: int
    known: int
    recall: float | None


def build_base(
    model: str | Path,
    cache: str | Path,
    *,
    corpus: str | None = None,
    teacher: str | None = None,
    settings: IndexSettings | None = None,
    texts: bool = False,
    tau: float | None = None,
    overwrite: bool = False,
    on_step: OnStep | None = None,
) -> Built:
    """Build the knowledge base of a student from a cache; rows that its run held out are left out.

    Args:
        model: a run, or a model folder with a classifier.
        cache: cache with the teacher's vectors and logits.
        corpus, teacher: names; default: those of the run.
        settings: settings of the graph.
        texts: keep the texts, so that neighbours can be shown.
        tau: temperature of the neighbours' weights; default: that of the student's training, else 0.07.
        overwrite: replace an earlier base.
        on_step: progress.

    Raises:
        ConfigError: if there is a base already, or no teacher is known.
        DataError: if the teacher's vectors are not those the student searches, or vectors are missing.
        InputError: if there is no such corpus or teacher.
        StorageError: if it cannot be written.
    """
    student, opened = open_student(model), Cache(cache)
    with locked_folder(student.folder):
        if (student.folder / KNOWLEDGE_BASE).exists() and not overwrite:
            raise ConfigError(
                f"{student.folder / KNOWLEDGE_BASE} exists: add to it with 'distill kb add', or use "
                "--overwrite"
            )
        if teacher is not None:
            found = opened.teacher(teacher)
        elif student.teacher is not None:
            found = _teacher(opened, student.teacher[0], student.teacher[1].id)
        else:
            raise ConfigError(f"{student.title} was trained without a teacher: name one with --teacher")
        source = student.find_corpus(opened) if corpus is None else opened.corpus(corpus)
        origin, logits = Origin.find(opened, found)
        where = f"teacher {found.name!r} in {opened.folder}"
        student.check(origin, found.contract.dimension, where)
        if student.searches_own_vectors(origin):
            student.check_encoder(origin, load_teacher(student.folder, device="cpu").contract, where)
        header = Header(
            rows=1,
            dimension=found.contract.dimension,
            origin=origin,
            index=settings or IndexSettings(),
            tau=student.tau if tau is None else tau,
            corpora=(),
            texts=texts,
        )
        return _extend(student, opened, source, found, logits, header, None, on_step)


def add_rows(
    model: str | Path, cache: str | Path, *, corpus: str | None = None, on_step: OnStep | None = None
) -> Built:
    """Add another corpus to a student's knowledge base; k and beta stay.

    Texts in the base and those that the run held out are left out. ``ef_search`` is measured again if it was
    measured before and the cache has vectors of enough held-out rows.

    Args:
        model: the student.
        cache: cache with vectors and logits of the base's teacher.
        corpus: name; default: the only one.
        on_step: progress.

    Raises:
        DataError: if there is no base, its teacher or classifier is another, or vectors are missing.
        InputError: if there is no such corpus.
        StorageError: if it cannot be written; the base stays as it was.
    """
    student, opened = open_student(model), Cache(cache)
    with locked_folder(student.folder):
        base = require_base(student)
        teacher = _teacher(opened, base.header.origin.teacher, base.header.origin.contract)
        origin, logits = Origin.find(opened, teacher)
        if origin.logits != base.header.origin.logits:
            raise DataError(
                f"another classifier: the base has soft labels of contract {base.header.origin.logits[:12]}, "
                f"{opened.folder} has {origin.logits[:12]}: build the base again with 'distill kb build'"
            )
        source = opened.corpus(corpus)
        return _extend(student, opened, source, teacher, logits, base.header, base, on_step)


def require_base(student: StudentFolder) -> KnowledgeBase:
    """Return the knowledge base of a student.

    Raises:
        DataError: if there is none, or the student cannot search it.
        CorruptCacheError: if it is damaged.
    """
    require_header(student)
    base = KnowledgeBase.read(student.folder)
    if base is None:
        raise DataError(f"{student.title} has no knowledge base any more: it was removed meanwhile")
    return base


def require_header(student: StudentFolder) -> Header:
    """Return the header of a student's knowledge base, without reading the vectors; errors as above."""
    header = Header.read(student.folder)
    if header is None:
        raise DataError(f"{student.title} has no knowledge base: build one with 'distill kb build'")
    student.check(header.origin, header.dimension, f"the knowledge base in {student.folder}")
    return header


def index_bytes(model: Path) -> int:
    """Return the size of the index of the base in a model's folder."""
    return (model / KNOWLEDGE_BASE / INDEX).stat().st_size


def _extend(
    student: StudentFolder,
    cache: Cache,
    corpus: Corpus,
    teacher: CachedTeacher,
    logits: CachedTeacher,
    header: Header,
    base: KnowledgeBase | None,
    on_step: OnStep | None,
) -> Built:
    """Add the rows of a corpus to a base (None: to a new one of ``header``) and write it."""
    held_out, keys = key_array(student.held_out()), corpus.keys()
    first = first_occurrences([keys])
    held = first & _contains(held_out, keys)
    known = first & ~held & base.holds(keys) if base else np.zeros_like(first)
    rows = np.flatnonzero(first & ~held & ~known)
    if not len(rows):
        raise DataError(f"{corpus.title} has no new row: all are in the knowledge base or were held out")
    vectors, said = (stored_vectors(cache, one, keys[rows], corpus) for one in (teacher, logits))
    if not vectors.any(axis=1).all():
        raise DataError(f"teacher {teacher.name!r} has vectors of zeros: find them with 'embedcache doctor'")
    # Codecs store a unit vector as one of nearly unit length.
    vectors, soft = unit(vectors), softmax(said.astype(np.float64), axis=1).astype(np.float32)
    texts = tuple(corpus.texts(rows)) if header.texts else None
    linked = partial(on_step, "linked") if on_step else None
    if base is None:
        index = NeighbourIndex.build(vectors, header.index, linked)
        grown = KnowledgeBase(header, index, soft, keys[rows], texts)
    else:
        base.index.add(vectors, linked)
        grown = replace(
            base,
            soft_labels=np.concatenate([base.soft_labels, soft]),
            keys=np.concatenate([base.keys, keys[rows]]),
            texts=None if base.texts is None or texts is None else base.texts + texts,
        )
    settings, recall = grown.index.settings, None
    if settings.ef_search is None or settings.is_settled:
        store = cache.store(teacher.contract)
        places = store.locate(held_out)
        recall = grown.index.settle(unit(store.vectors(places[places >= 0])))
    entry = BaseCorpus(name=corpus.name, digest=corpus.info.digest, rows=len(rows))
    described = header.model_copy(update={"corpora": (*header.corpora, entry)})
    written = replace(grown, header=described).write(student.folder)
    return Built(written, len(rows), len(keys) - int(first.sum()), int(held.sum()), int(known.sum()), recall)


def _teacher(cache: Cache, name: str, contract: str) -> CachedTeacher:
    """Find a teacher by its contract: another cache may have it under another name."""
    for teacher in cache.teachers():
        if teacher.contract.id == contract:
            return teacher
    raise DataError(
        f"{cache.folder} has no teacher {name!r} of contract {contract[:12]}; it has "
        f"{', '.join(teacher.name for teacher in cache.teachers()) or 'none'}"
    )


def _read(header: Header, folder: Path) -> KnowledgeBase:
    from safetensors.numpy import load

    def content(name: str) -> bytes:
        data = bytes(map_regular(folder / name))
        if hashlib.sha256(data).hexdigest() != header.files[name]:
            raise ValueError(f"{name} does not match its digest")
        return data

    index = NeighbourIndex.from_bytes(content(INDEX), header.index)
    rows = load(content(ROWS))
    base = KnowledgeBase(
        header=header,
        index=index,
        soft_labels=rows["soft_labels"],
        keys=_as_keys(rows["keys"]),
        texts=tuple(json.loads(content(TEXTS))) if header.texts else None,
        chosen_keys=_as_keys(load(content(CHOSEN))["keys"]) if header.chosen else None,
    )
    shapes = (
        (len(index), index.dimension),
        base.soft_labels.shape,
        len(base.keys),
        len(base.texts or base.keys),
    )
    n, labels = header.rows, len(header.origin.labels)
    if shapes != ((n, header.dimension), (n, labels), n, n):
        raise ValueError(f"its header describes {n} rows of {header.dimension} numbers, found {shapes}")
    return base


def _contains(among: KeyArray, keys: KeyArray) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = KeyIndex(among).locate(keys) >= 0
    return found


def _key_bytes(keys: KeyArray) -> NDArray[np.uint8]:
    return np.ascontiguousarray(keys).view(np.uint8).reshape(-1, KEY_BYTES)


def _as_keys(data: NDArray[np.uint8]) -> KeyArray:
    return np.ascontiguousarray(data).view(KEY_DTYPE).reshape(-1)
