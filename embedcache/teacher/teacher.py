"""Teacher: a frozen sentence encoder with the contract of its vectors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from embedcache.contract import Contract
from embedcache.teacher.classifier import ClassifierHead
from embedcache.teacher.resolve import ModelSource

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


@dataclass(frozen=True)
class Teacher:
    """Loaded, frozen teacher.

    Attributes:
        source: model folder and its origin.
        model: the sentence-transformers model, in eval mode, gradients off.
        contract: everything that determines its vectors.
        head: classifier whose logits are its vectors; None for the model's own vectors.
        task: value of ``task`` that the model is called with.
        route: route of a Router model, whose modules it has.
    """

    source: ModelSource
    model: SentenceTransformer
    contract: Contract
    head: ClassifierHead | None = None
    task: str | None = None
    route: str | None = None

    @property
    def name(self) -> str:
        """Name in a cache."""
        return self.source.name

    @property
    def folder(self) -> Path:
        """Local folder that holds the model."""
        return self.source.folder

    @property
    def dimension(self) -> int:
        """Width of a vector."""
        return self.contract.dimension
