"""Digests of a model folder: its weights, its tokenizer and its architecture.

They are taken from the files, not from loaded objects, so another version of a library does not rename a
teacher; and from what the files say rather than from their bytes, so the same tensors in one file, in
several, or in another container are the same weights.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

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
_UNREADABLE = (
    "holds more than plain tensors or is damaged, and is not loaded: ask for the model in safetensors form"
)
_SLOW_TOKENIZER_FILES = ("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spiece.model")


def weight_files(folder: Path, subfolder: str = "") -> list[Path]:
    """Return the weight files below ``folder`` that loading reads: safetensors, else ``pytorch_model*.bin``.

    Each folder of modules (the transformer's, ``2_Dense`` ...) is judged on its own; ``onnx`` and
    ``openvino`` exports are left out.

    Args:
        folder: the model folder.
        subfolder: where below it the transformer lies, where that is not the folder itself.

    Raises:
        TeacherError: if there are no weights at all.
    """
    found: list[Path] = []
    first = folder / subfolder
    others = sorted(p for p in folder.iterdir() if p.is_dir() and p.name[:1].isdigit() and p != first)
    for place in [first, *others]:
        safe = sorted(place.glob("*.safetensors"))
        found += safe or sorted(place.glob("pytorch_model*.bin"))
    if not found:
        raise TeacherError(
            f"no weights in {folder}: expected model.safetensors or pytorch_model.bin, "
            f"found {sorted(p.name for p in folder.iterdir())[:12]}; "
            "check the path or download the model again"
        )
    return found


def _tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    if path.suffix == ".safetensors":
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="pt") as handle:
                for name in handle.keys():  # noqa: SIM118 - a safetensors handle is no mapping
                    yield name, handle.get_tensor(name)
        except SafetensorError as error:
            raise TeacherError(
                f"{path} is no complete safetensors file ({error}); copy the model again"
            ) from error
    else:
        import pickle

        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            plain = isinstance(state, dict) and all(
                isinstance(value, torch.Tensor) for value in state.values()
            )
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise TeacherError(f"{path} {_UNREADABLE}") from error
        if not plain:
            raise TeacherError(f"{path} {_UNREADABLE}")
        yield from sorted(state.items())


def weights_digest(folder: Path, subfolder: str = "") -> tuple[str, list[str]]:
    """Return the digest of all weight tensors below ``folder`` and the tensors' names.

    The transformer's tensors are named alike wherever it lies, so its place does not rename a teacher.

    Args:
        folder: the model folder.
        subfolder: where below it the transformer lies, where that is not the folder itself.

    Raises:
        TeacherError: if there are no weights, or a file is damaged or holds more than tensors.
    """
    import torch

    entries: dict[str, str] = {}
    for path in weight_files(folder, subfolder):
        place = "." if path.parent == folder / subfolder else path.parent.relative_to(folder).as_posix()
        for name, tensor in _tensors(path):
            data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            digest = hashlib.sha256(data.data).hexdigest()
            entries[f"{place}/{name}"] = f"{tensor.dtype}:{list(tensor.shape)}:{digest}"
    return hashlib.sha256(canonical_json(entries)).hexdigest(), sorted(entries)


def read_json(path: Path) -> dict[str, object]:
    """Return the JSON object in ``path``, or an empty one where there is no file.

    Raises:
        TeacherError: if the file is not a JSON object.
    """
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TeacherError(f"{path} is not JSON ({error}); copy the model again") from error
    if not isinstance(value, dict):
        raise TeacherError(
            f"{path} holds a {type(value).__name__}, expected a JSON object; copy the model again"
        )
    return value


def architecture_digest(folder: Path) -> str:
    """Return the digest of the folder's ``config.json`` without the fields that change nothing."""
    config = read_json(folder / "config.json")
    return hashlib.sha256(
        canonical_json({k: v for k, v in config.items() if k not in _VOLATILE_CONFIG})
    ).hexdigest()


def tokenizer_digest(folder: Path) -> str:
    """Return the digest of the tokenizer's files.

    ``tokenizer.json`` is the whole tokenizer where it is there; its padding and truncation settings are left
    out because every encode call sets its own, all but the side a text is cut on. Otherwise the vocabulary
    files count.

    Raises:
        TeacherError: if the folder holds no tokenizer.
    """
    parts: dict[str, object] = {}
    fast = read_json(folder / "tokenizer.json")
    if fast:
        parts["tokenizer.json"] = {k: v for k, v in fast.items() if k not in ("padding", "truncation")}
    else:
        for name in _SLOW_TOKENIZER_FILES:
            if (folder / name).exists():
                parts[name] = sha256_file(folder / name)
    if not parts:
        raise TeacherError(
            f"no tokenizer in {folder}: expected tokenizer.json or one of {', '.join(_SLOW_TOKENIZER_FILES)}"
        )
    config = read_json(folder / "tokenizer_config.json")
    parts["tokenizer_config.json"] = {k: v for k, v in config.items() if k not in _VOLATILE_TOKENIZER_CONFIG}
    # Only where it is not the usual one, so that spelling out the default does not rename a teacher.
    if (side := _truncation_side(config, fast)) != "right":
        parts["truncation_side"] = side
    parts["do_lower_case"] = read_json(folder / "sentence_bert_config.json").get("do_lower_case", False)
    return hashlib.sha256(canonical_json(parts)).hexdigest()


def _truncation_side(config: dict[str, object], fast: dict[str, object]) -> str:
    truncation = fast.get("truncation")
    direction = truncation.get("direction") if isinstance(truncation, dict) else None
    return str(config.get("truncation_side") or direction or "right").lower()
