"""Models that make views: where they lie, what they are, and loading them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedcache.errors import MissingExtraError, TeacherError
from embedcache.fsio import canonical_json, sha256_file
from embedcache.teacher.digest import architecture_digest, read_json, weights_digest
from embedcache.teacher.load import quiet_transformers
from embedcache.teacher.resolve import resolve

# Of these a tokenizer is made, whichever of them a model has.
_TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "source.spm",
    "target.spm",
    "spiece.model",
    "sentencepiece.bpe.model",
)
_VOLATILE_GENERATION = {"transformers_version", "_from_model_config", "max_length", "num_beams"}


@dataclass(frozen=True)
class ModelFolder:
    """A model: what the user typed, its folder, and the digest of all in it that makes a text."""

    spec: str
    folder: Path
    digest: str


def find_model(spec: str) -> ModelFolder:
    """Find a model by hub id or folder, and take its digest.

    Raises:
        TeacherError: if there is none, or its files cannot be read.
    """
    folder = resolve(spec).folder
    if not (folder / "config.json").exists():
        raise TeacherError(f"{folder} is no model folder: it has no config.json")
    generation = read_json(folder / "generation_config.json")
    parts = {
        "weights": weights_digest(folder)[0],
        "architecture": architecture_digest(folder),
        "generation": {k: v for k, v in generation.items() if k not in _VOLATILE_GENERATION},
        "tokenizer": {
            name: sha256_file(folder / name) for name in _TOKENIZER_FILES if (folder / name).exists()
        },
    }
    return ModelFolder(spec, folder, hashlib.sha256(canonical_json(parts)).hexdigest())


def load_model(model: ModelFolder, kind: str, device: str) -> tuple[Any, Any]:
    """Return a model for inference, in float32, and its tokenizer.

    Args:
        model: where it lies.
        kind: the name of the transformers class that loads it.
        device: ``auto``, ``cpu``, ``cuda`` ...

    Raises:
        TeacherError: if it cannot be loaded, or lacks weights for what it is to do.
        MissingExtraError: if its tokenizer needs a library that is not installed.
    """
    import torch
    import transformers

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        with quiet_transformers():
            tokenizer = transformers.AutoTokenizer.from_pretrained(model.folder, local_files_only=True)
            loaded, report = getattr(transformers, kind).from_pretrained(
                model.folder, local_files_only=True, dtype=torch.float32, output_loading_info=True
            )
    except ImportError as error:
        raise MissingExtraError(
            f"the tokenizer of {model.spec} needs more than is installed ({_first_line(error)}); run: "
            "pip install 'embedcache[views]'"
        ) from error
    except (OSError, ValueError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise TeacherError(
            f"cannot load {model.spec} as {kind} ({_first_line(error)}); name another"
        ) from error
    # Gaps would be filled with random numbers: an encoder without a head guesses words by lot.
    if missing := sorted(report["missing_keys"]):
        raise TeacherError(
            f"{model.spec} holds no weights for {len(missing)} parameters of {kind} (first: {missing[0]}), "
            "which would be random: name a model that was trained for this"
        )
    return loaded.eval().requires_grad_(False).to(torch.device(device)), tokenizer


def batches_of_one_length(
    lengths: Sequence[int], batch_tokens: int, run: Callable[[list[int]], None]
) -> None:
    """Call ``run`` with the places of items of one length, at most ``batch_tokens`` tokens of them at once.

    Where nothing is padded, what stands beside an item cannot reach it through a mask.
    """
    places: dict[int, list[int]] = {}
    for place, length in enumerate(lengths):
        places.setdefault(length, []).append(place)
    for length, found in sorted(places.items()):
        size = max(batch_tokens // max(length, 1), 1)
        for start in range(0, len(found), size):
            run(found[start : start + size])


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
