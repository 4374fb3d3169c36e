"""Header of a knowledge base, the folder ``knowledge_base/`` inside a student's model folder.

=====================  =============================================================================
file                   content
=====================  =============================================================================
``header.json``        :class:`Header`: origin, settings, digests of the other files; sealed
``index.faiss``        the projected vectors in an HNSW graph
``rows.safetensors``   ``soft_labels`` float32 (n, c); ``keys`` uint8 (n, 16) of the texts
``texts.json``         the texts, if they are kept
``chosen.safetensors`` ``keys`` uint8 (m, 16) of the texts that k and beta were chosen on
=====================  =============================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from distill.layout import KNOWLEDGE_BASE
from distill.reaugkd.index import IndexSettings
from distill.reaugkd.student import Origin
from embedcache.errors import CorruptCacheError
from embedcache.fsio import read_sealed_json

HEADER, INDEX, ROWS = "header.json", "index.faiss", "rows.safetensors"
TEXTS, CHOSEN = "texts.json", "chosen.safetensors"


class Chosen(BaseModel):
    """Chosen k and beta, and the labelled rows they were chosen on.

    Attributes:
        k: neighbours per text.
        beta: weight of the student's own answer, 0 to 1.
        source: description of the rows.
        digest: sha256 of their texts and labels.
        rows: their number.
        accuracy, without: share of them that is right with retrieval and without, 0 to 1.
        base_rows: rows of the base at that time.
        lead: 95 % interval of ``accuracy - without``; None in a base of an older version.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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


class BaseCorpus(BaseModel):
    """Corpus whose rows a base holds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    digest: str
    rows: int


class Header(BaseModel):
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

    model_config = ConfigDict(frozen=True, extra="forbid")

    version: Literal[1] = 1
    rows: int = Field(ge=1)
    dimension: int = Field(ge=1)
    origin: Origin
    index: IndexSettings
    tau: float = Field(gt=0)
    corpora: tuple[BaseCorpus, ...]
    texts: bool
    chosen: Chosen | None = None
    files: dict[str, str] = {}

    @classmethod
    def read(cls, model: Path) -> Header | None:
        """Read the header of the base in a model's folder; None without a base.

        Raises:
            CorruptCacheError: if it is missing, damaged or of another version.
        """
        folder = model / KNOWLEDGE_BASE
        if not folder.is_dir():
            return None
        try:
            return cls.model_validate(read_sealed_json(folder / HEADER))
        except (OSError, ValueError) as error:
            raise damaged(folder, error) from error


def damaged(folder: Path, why: Exception) -> CorruptCacheError:
    """Return the error of a damaged base."""
    return CorruptCacheError(
        f"the knowledge base {folder} is damaged ({str(why)[:300]}): copy it again, or build it with "
        "'distill kb build --overwrite'"
    )
