"""Models at their leading dimensions, and with fewer bits a number, as vector databases keep vectors.

A cut vector is scaled to length one again (Kusupati et al., "Matryoshka Representation Learning", 2022). int8
are 255 steps up to the largest component of a row, binary the signs alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

import numpy as np

from distill.errors import DataError
from distill.evaluation.models import Model, Vectors
from distill.vectors import unit
from embedcache.codecs import get_codec

Form: TypeAlias = Literal["float", "int8", "binary"]


class ShortModel(Model):
    """Model that truncates or quantizes the vectors of another model.

    Args:
        whole: the other model.
        dimension: leading dimensions to keep; None: all.
        form: form of the numbers.
    """

    def __init__(self, whole: Model, dimension: int | None, form: Form) -> None:
        cut = "" if dimension is None else f"@{dimension}"
        super().__init__(f"{whole.name}{cut}{'' if form == 'float' else f' {form}'}", self.encode)
        self._whole, self._leading, self._form = whole, dimension, form
        self.parts, self.in_target_space, self.spec = (whole,), whole.in_target_space, self.name

    def identity(self) -> str | None:
        """Return its identity in stored results."""
        identity = self._whole.identity()
        return None if identity is None else f"{identity} dimensions {self._leading} {self._form}"

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return the vectors of ``texts``; the other encodes them in the same call, which it keeps."""
        vectors = self._shorten(self._whole.encode(texts))
        self._width = vectors.shape[1]
        return vectors

    def _shorten(self, vectors: Vectors) -> Vectors:
        if self._leading is not None:
            refuse_wider(self._whole, [self._leading])
            vectors = unit(np.ascontiguousarray(vectors[:, : self._leading]))
        if self._form == "binary":
            return np.where(vectors > 0, np.float32(1), np.float32(-1))
        if self._form == "int8":
            codec = get_codec("int8")
            return np.asarray(codec.decode(codec.encode(vectors)), np.float32)
        return vectors


def shortened(model: Model, dimensions: Sequence[int] | int) -> list[Model]:
    """Return a model and its variants: as it is and at each of ``dimensions``, in each form.

    The model encodes each batch of texts once for all of them, and keeps the vectors in memory.

    Raises:
        DataError: if a dimension is below 1, or not below the model's as far as that is known.
    """
    dimensions = [dimensions] if isinstance(dimensions, int) else list(dimensions)
    if other := [one for one in dimensions if not isinstance(one, int)]:
        raise DataError(f"dims: found {other[0]!r}, expected whole numbers, such as [32, 64]")
    if least := [one for one in dimensions if one < 1]:
        raise DataError(f"dims: {least[0]} dimensions, expected at least 1")
    refuse_wider(model, dimensions)
    model.keep_vectors()
    short = [
        ShortModel(model, dimension, form)
        for dimension in (None, *dict.fromkeys(dimensions))
        for form in get_args(Form)
        if (dimension, form) != (None, "float")
    ]
    return [model, *short]


def refuse_wider(model: Model, dimensions: Sequence[int]) -> None:
    """Raise ``DataError`` where a model's vectors are not longer than the dimensions to keep."""
    width = model.dimension
    if width is not None and (wide := [one for one in dimensions if one >= width]):
        raise DataError(f"dims: {wide[0]} of {model.name}, whose vectors have {width}; give fewer than that")
