"""Knowledge base: vectors of texts with their teacher's soft labels, and the folder it is kept in.

The folder ``knowledge_base/`` lies inside a student's model folder and is replaced as a whole:

=====================  =============================================================================
file                   content
=====================  =============================================================================
``header.json``        ``Header``: origin, settings, digests of the other files; sealed
``index.faiss``        the projected vectors in an HNSW graph
``rows.safetensors``   ``soft_labels`` float32 (n, c); ``keys`` uint8 (n, 16) of the texts
``texts.json``         the texts, if they are kept
``chosen.safetensors`` ``keys`` uint8 (m, 16) of the texts that k and beta were chosen on
=====================  =============================================================================
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from scipy.special import softmax

from distill.layout import KNOWLEDGE_BASE
from distill.reaugkd.index import Found, IndexSettings, NeighbourIndex
from distill.reaugkd.soft_labels import encoder_of, module_entry
from embedcache.contract import Contract
from embedcache.errors import CorruptCacheError
from embedcache.folders import folder_that_appears
from embedcache.fsio import map_regular, read_sealed_json, write_sealed_json
from embedcache.keys import KEY_BYTES, KEY_DTYPE, KeyArray, KeyIndex

HEADER, INDEX, ROWS = "header.json", "index.faiss", "rows.safetensors"
TEXTS, CHOSEN = "texts.json", "chosen.safetensors"

Probabilities = NDArray[np.float64]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Origin(_Part):
    """Source of the vectors and soft labels of a knowledge base.

    Attributes:
        teacher: name of the teacher of the vectors.
        contract: id of its contract.
        base: id of the contract that was projected; None for unprojected vectors.
        projection: sha256 of the projection's weights; None for unprojected vectors.
        logits: id of the contract of the logits.
        labels: names of the labels, in the order of the soft labels.
        classifier: digest of the classifier that gave the logits.
        encoder: fields of the vectors' contract, see ``distill.reaugkd.soft_labels.encoder_of``.
    """

    teacher: str
    contract: str
    base: str | None = None
    projection: str | None = None
    logits: str
    labels: tuple[str, ...]
    classifier: str | None = None
    encoder: dict[str, Any] | None = None

    @classmethod
    def of(cls, teacher: str, vectors: Contract, logits: Contract) -> Origin:
        """Return the origin of a teacher's vectors and of its classifier's logits."""
        projection = module_entry(vectors, "Projection")
        classifier = module_entry(logits, "Classifier")
        return cls(
            teacher=teacher,
            contract=vectors.id,
            base=projection.get("of"),
            projection=projection.get("weights"),
            logits=logits.id,
            labels=classifier["labels"],
            classifier=classifier["weights"],
            encoder=encoder_of(vectors),
        )


class Chosen(_Part):
    """Chosen k and beta, and the labelled rows they were chosen on.

    Attributes:
        k: neighbours per text.
        beta: weight of the student's own answer, 0 to 1.
        source: description of the rows.
        digest: sha256 of their texts and labels.
        rows: their number.
        accuracy, without: share of them that is right with retrieval and without, 0 to 1.
        base_rows: rows of the base at that time.
        lead: 95 % interval of ``accuracy - without``.
    """

    k: int = Field(ge=1)
    beta: float = Field(ge=0, le=1)
    source: str
    digest: str
    rows: int
    accuracy: float
    without: float
    base_rows: int
    lead: tuple[float, float] | None = None

    @property
    def within_chance(self) -> bool:
        """The interval of the lead includes zero."""
        return self.beta < 1 and self.lead is not None and self.lead[0] <= 0


class BaseCorpus(_Part):
    """Corpus whose rows a base holds."""

    name: str
    digest: str
    rows: int


class Header(_Part):
    """Description of a knowledge base.

    Attributes:
        rows, dimension: shape of the vectors.
        origin: source of vectors and soft labels.
        index: settings of the graph.
        tau: temperature of the neighbours' weights.
        corpora: corpora in the order they were added.
        texts: the texts are kept.
        chosen: k and beta; None until they are chosen.
        files: name -> sha256 of every other file.
    """

    version: Literal[1] = 1
    rows: int = Field(ge=0)
    dimension: int = Field(ge=1)
    origin: Origin
    index: IndexSettings
    tau: float = Field(gt=0)
    corpora: tuple[BaseCorpus, ...] = ()
    texts: bool
    chosen: Chosen | None = None
    files: dict[str, str] = {}


@dataclass(frozen=True)
class KnowledgeBase:
    """Vectors of texts with their teacher's soft labels.

    Attributes:
        header: its description; counts and digests are those of the last ``write``.
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

    @classmethod
    def empty(cls, header: Header) -> KnowledgeBase:
        """Return a base without rows."""
        return cls(
            header=header,
            index=NeighbourIndex.build(np.empty((0, header.dimension), np.float32), header.index),
            soft_labels=np.empty((0, len(header.origin.labels)), np.float32),
            keys=np.empty(0, KEY_DTYPE),
            texts=() if header.texts else None,
        )

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.keys)

    def holds(self, keys: KeyArray) -> NDArray[np.bool_]:
        """Return the mask of texts in the base, bool of shape (len(keys),)."""
        return contains(self.keys, keys)

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
        folder = model / KNOWLEDGE_BASE
        if not folder.is_dir():
            return None
        try:
            return _read(folder)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise CorruptCacheError(
                f"the knowledge base {folder} is damaged ({str(error)[:300]}): copy it again, or build it "
                "with 'distill kb build --overwrite'"
            ) from error

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
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        header = self.header.model_copy(
            update={"rows": len(self), "index": self.index.settings, "files": digests}
        )
        with folder_that_appears(model / KNOWLEDGE_BASE, overwrite=True) as folder:
            for name, data in files.items():
                (folder / name).write_bytes(data)
            write_sealed_json(folder / HEADER, header.model_dump(mode="json"))
        return replace(self, header=header)


def _read(folder: Path) -> KnowledgeBase:
    from safetensors.numpy import load

    header = Header.model_validate(read_sealed_json(folder / HEADER))

    def content(name: str) -> bytes:
        data = bytes(map_regular(folder / name))
        if hashlib.sha256(data).hexdigest() != header.files[name]:
            raise ValueError(f"{name} does not match its digest")
        return data

    rows = load(content(ROWS))
    base = KnowledgeBase(
        header=header,
        index=NeighbourIndex.from_bytes(content(INDEX), header.index),
        soft_labels=rows["soft_labels"],
        keys=_as_keys(rows["keys"]),
        texts=tuple(json.loads(content(TEXTS))) if header.texts else None,
        chosen_keys=_as_keys(load(content(CHOSEN))["keys"]) if header.chosen else None,
    )
    count, labels = header.rows, len(header.origin.labels)
    wanted = (count, header.dimension), (count, labels), count, count
    texts = count if base.texts is None else len(base.texts)
    shapes = (len(base.index), base.index.dimension), base.soft_labels.shape, len(base), texts
    if shapes != wanted:
        raise ValueError(f"its files have the shapes {shapes}, its header says {wanted}")
    return base


def contains(among: KeyArray, keys: KeyArray) -> NDArray[np.bool_]:
    """Return the mask of keys among others, bool of shape (len(keys),)."""
    found: NDArray[np.bool_] = KeyIndex(among).locate(keys) >= 0
    return found


def _key_bytes(keys: KeyArray) -> NDArray[np.uint8]:
    return np.ascontiguousarray(keys).view(np.uint8).reshape(-1, KEY_BYTES)


def _as_keys(data: NDArray[np.uint8]) -> KeyArray:
    return np.ascontiguousarray(data).view(KEY_DTYPE).reshape(-1)
