"""A loaded SentenceTransformer as teacher: its files are loaded again and must give the same vectors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from embedcache.errors import TeacherError
from embedcache.teacher.options import TeacherOptions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from embedcache.teacher.text_encoder import TextEncoder

_TEXTS = (
    "A sentence.",
    "Two of them stand here. This is the second.",
    "word " * 600,
    "Ein Satz auf Deutsch.",
)
_LEAST, _LEAST_HALF = 0.9999, 0.999
"""Cosine to a model's vectors; other kernels lose less, and half precision."""
_NORM_RTOL = 0.02
"""Difference of two lengths, relative; half precision makes less."""


def is_model(given: object) -> TypeGuard[SentenceTransformer]:
    """Return whether a teacher is given as a model of sentence-transformers."""
    library = sys.modules.get("sentence_transformers")
    return library is not None and isinstance(given, library.SentenceTransformer)


def options_of(model: SentenceTransformer) -> TeacherOptions:
    """Return the files a model was loaded from, with its truncation and its prompt.

    Raises:
        TeacherError: if it was not loaded from files.
    """
    first: Any = model[0]
    place = str(getattr(getattr(first, "auto_model", None), "name_or_path", "") or "")
    folder = Path(place)
    is_whole = (folder / "modules.json").is_file()
    if folder.is_dir() and not is_whole and (folder.parent / "modules.json").is_file():
        folder = folder.parent  # the files of its first module
    if not place or (not folder.is_dir() and place.count("/") > 1):
        raise TeacherError(
            "the SentenceTransformer was not loaded from a folder or the hub: save it (model.save('FOLDER')) "
            "and give the folder"
        )
    spec = str(folder) if folder.is_dir() else place
    return TeacherOptions(spec, truncate_dim=model.truncate_dim, prompt_name=model.default_prompt_name)


def refuse_other_vectors(model: SentenceTransformer, encoder: TextEncoder, spec: str) -> None:
    """Raise ``TeacherError`` unless a model gives the vectors that a fresh load of its files gives."""
    texts = list(_TEXTS)
    given = np.asarray(model.encode(texts, show_progress_bar=False), np.float32)
    fresh = encoder.encode(texts).vectors
    if given.shape != fresh.shape:
        found = f"{given.shape[1]} and {fresh.shape[1]} dimensions"
    else:
        norms = [np.linalg.norm(vectors, axis=1) for vectors in (given, fresh)]
        least = float((np.einsum("nd,nd->n", given, fresh) / (norms[0] * norms[1])).min())
        half = encoder.provenance.get("compute_dtype") in ("bfloat16", "float16")
        is_as_long = np.allclose(norms[0], norms[1], rtol=_NORM_RTOL)
        if is_as_long and least >= (_LEAST_HALF if half else _LEAST):
            return
        found = f"cosine {least:.4f}" if is_as_long else f"of length {norms[0][0]:.3g}, not {norms[1][0]:.3g}"
    raise TeacherError(
        f"the SentenceTransformer given as teacher gives other vectors than its files at {spec} ({found}): "
        "it was changed after it was loaded; save it (model.save('FOLDER')) and give the folder"
    )
