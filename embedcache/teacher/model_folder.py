"""Files of a model folder: places of its transformer and weights, and digests of their contents.

Digests are taken from files, not from loaded objects, so a library version does not rename a teacher. They
are taken from contents, not from bytes, so the same tensors in one file, in several, or in another container
are the same weights.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, TypeAdapter

from embedcache.errors import TeacherError
from embedcache.fsio import canonical_json, sha256_file

if TYPE_CHECKING:
    import torch

# Fields that libraries rewrite on every save and that no vector depends on.
_VOLATILE_CONFIG = {
    "_name_or_path",
    "architectures",
    "dtype",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "label2id",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}
_VOLATILE_TOKENIZER_CONFIG = {
    "added_tokens_decoder",
    "backend",
    "clean_up_tokenization_spaces",
    "is_local",
    "local_files_only",
    "max_length",
    "model_max_length",
    "name_or_path",
    "pad_to_multiple_of",
    "padding",
    "processor_class",
    "special_tokens_map_file",
    "stride",
    "tokenizer_file",
    "truncation_side",
    "truncation_strategy",
}
_SLOW_TOKENIZER_FILES = ("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spiece.model")


def _inside(path: str) -> str:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"{path!r} is outside the model")
    return path


class ModuleEntry(BaseModel):
    """Entry of ``modules.json``.

    Attributes:
        type: class of the module.
        path: its folder below the model's.
    """

    type: str
    path: Annotated[str, AfterValidator(_inside)] = ""


_MODULES = TypeAdapter(list[ModuleEntry])


def read_modules(folder: Path) -> list[ModuleEntry]:
    """Read the entries of ``modules.json``; an empty list if there is no file.

    Raises:
        TeacherError: if it is not a list of modules in folders of the model.
    """
    path = folder / "modules.json"
    try:
        return _MODULES.validate_json(path.read_bytes()) if path.exists() else []
    except ValueError as error:
        raise TeacherError(f"{path} is not a list of modules of the model; copy the model again") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; an empty one if there is no file.

    Raises:
        TeacherError: if the file is not a JSON object.
    """
    try:
        value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        if not isinstance(value, dict):
            raise ValueError(f"it is a {type(value).__name__}")
    except ValueError as error:
        raise TeacherError(f"{path} is not a JSON object ({error}); copy the model again") from error
    return value


def transformer_folder(folder: Path) -> Path:
    """Find the transformer: as a rule the folder itself, ``0_Transformer`` below it in the older layout."""
    modules = read_modules(folder)
    return folder / modules[0].path if modules else folder


def weight_files(folder: Path) -> list[Path]:
    """List the weight files of each module: safetensors, and pickled ones without ``model*.safetensors``.

    Raises:
        TeacherError: if there are no weights.
    """
    first = transformer_folder(folder)
    # Exports lie in folders without a number that no module names.
    numbered = {place for place in folder.iterdir() if place.is_dir() and place.name[:1].isdigit()}
    others = numbered | {folder / module.path for module in read_modules(folder)[1:] if module.path}
    found: list[Path] = []
    for place in [first, *sorted(others - {first})]:
        found += sorted(place.glob("*.safetensors"))
        if not list(place.glob("model*.safetensors")):
            found += sorted(place.glob("pytorch_model*.bin"))
    if not found:
        raise TeacherError(f"no weights in {folder}: expected model.safetensors or pytorch_model.bin")
    return found


def weights_digest(folder: Path) -> tuple[str, list[str]]:
    """Digest all weight tensors of a model.

    The transformer's tensors have the same names in every layout, so its place does not rename a teacher.

    Returns:
        The digest, and the tensors' names.

    Raises:
        TeacherError: if there are no weights, or a file is damaged or holds more than tensors.
    """
    import torch

    entries: dict[str, str] = {}
    for path in weight_files(folder):
        is_transformer = path.parent == transformer_folder(folder)
        place = "." if is_transformer else path.parent.relative_to(folder).as_posix()
        for name, tensor in _tensors(path).items():
            data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            digest = hashlib.sha256(data.data).hexdigest()
            entries[f"{place}/{name}"] = f"{tensor.dtype}:{list(tensor.shape)}:{digest}"
    return _digest(entries), sorted(entries)


def _tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read a weight file; a pickle may hold tensors alone."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        # Files from before PyTorch 1.6 are not zip archives and cannot be mapped.
        mmap = zipfile.is_zipfile(path)
        state: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        if isinstance(state, dict) and all(isinstance(one, torch.Tensor) for one in state.values()):
            return state
        reason = "it is not a mapping of tensors"
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = str(error).partition("\n")[0]
    raise TeacherError(f"{path} is damaged or holds more than tensors ({reason}): copy the safetensors form")


def architecture_digest(folder: Path) -> str:
    """Digest ``config.json`` without the fields that change no vector."""
    config = read_json(folder / "config.json")
    return _digest({key: value for key, value in config.items() if key not in _VOLATILE_CONFIG})


def tokenizer_digest(folder: Path) -> str:
    """Digest the tokenizer: ``tokenizer.json`` if there is one, else the vocabulary files.

    Padding and truncation are left out because every call sets its own, except the side a text is cut on.

    Raises:
        TeacherError: if the folder holds no tokenizer.
    """
    parts: dict[str, object]
    if fast := read_json(folder / "tokenizer.json"):
        parts = {"tokenizer.json": {k: v for k, v in fast.items() if k not in ("padding", "truncation")}}
    else:
        files = [folder / name for name in _SLOW_TOKENIZER_FILES if (folder / name).exists()]
        parts = {path.name: sha256_file(path) for path in files}
    if not parts:
        raise TeacherError(
            f"no tokenizer in {folder}: expected tokenizer.json or one of {', '.join(_SLOW_TOKENIZER_FILES)}"
        )
    config = read_json(folder / "tokenizer_config.json")
    parts["tokenizer_config.json"] = {k: v for k, v in config.items() if k not in _VOLATILE_TOKENIZER_CONFIG}
    direction = (fast.get("truncation") or {}).get("direction")
    side = str(config.get("truncation_side") or direction or "right").lower()
    # Only the unusual side is noted, so spelling out the default does not rename a teacher.
    if side != "right":
        parts["truncation_side"] = side
    parts["do_lower_case"] = read_json(folder / "sentence_bert_config.json").get("do_lower_case", False)
    return _digest(parts)


def _digest(value: object) -> str:
    return hashlib.sha256(canonical_json(value)).hexdigest()
