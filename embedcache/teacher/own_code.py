"""Own code of a model: Python files that come with it, run only with ``trust_remote_code``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

from embedcache.errors import TeacherError
from embedcache.fsio import json_digest, sha256_file
from embedcache.teacher.model_folder import LIBRARY, ModelFolder, read_json

UNREAD = (
    *("README*", "*.md", "LICENSE*", "NOTICE*", ".git*", ".cache/*", "*__pycache__/*"),
    *("*.png", "*.jpg", "*.jpeg", "*.gif", "*.svg", "*.webp", "*.pdf"),
    *("onnx/*", "openvino/*", "*.onnx", "*.onnx_data", "*.gguf", "*.tflite", "*.mlmodel", "coreml/*"),
    *("*.h5", "*.msgpack", "*.ot"),
    *("optimizer.pt", "optimizer.bin", "scheduler.pt", "scheduler.bin", "rng_state*.pth"),
    *("trainer_state.json", "training_args.bin", "eval/*.csv", "runs/*", "*.tfevents*", "checkpoint-*"),
)
"""Patterns of files that no code of a model reads: texts, pictures, exports and the state of a training."""
_NAMING_CODE = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")


def module_code(folder: ModelFolder) -> list[str]:
    """Return the classes of a model's modules, of all routes, that are not of sentence-transformers."""
    entries = [entry for one in ModelFolder.of_routes(folder.path) for _, entry in one.modules]
    return sorted({entry.type for entry in entries if not entry.type.startswith(LIBRARY)})


def mapped_code(folder: ModelFolder) -> list[str]:
    """Return the classes that the ``auto_map`` of a model names; transformers may have its own instead."""
    places = {folder.path, folder.transformer, *([folder.base] if folder.base else [])}
    return sorted({one for place in places for one in _mapped(place)})


def _mapped(place: Path) -> Iterator[str]:
    for name in _NAMING_CODE:
        named = read_json(place / name).get("auto_map") or {}
        for value in named.values() if isinstance(named, Mapping) else [named]:
            yield from (
                one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)
            )


def code_repositories(folder: ModelFolder) -> list[str]:
    """Return the hub ids of other repositories whose code a model names, as in ``org/name--file.Class``."""
    named = [*module_code(folder), *mapped_code(folder)]
    return sorted({one.partition("--")[0] for one in named if "--" in one})


def code_digest(folder: ModelFolder, repositories: Mapping[str, Path]) -> str:
    """Digest all that a model's own code may read: its files, except ``UNREAD`` and the loaded weights.

    Args:
        folder: the model.
        repositories: folder of each other repository by its hub id; its Python files count.

    Raises:
        TeacherError: if the folder holds links to folders.
    """
    # The same weights in another container, which a download leaves out.
    unread = (*UNREAD, "pytorch_model*.bin", "model.safetensors", "model-*-of-*.safetensors", "*.index.json")
    weights = {path for _, path in folder.weight_files()}
    parts = {}
    for place, prefix in ((folder.path, ""), *([(folder.base, "base/")] if folder.base else [])):
        for path in place.rglob("*"):
            name = path.relative_to(place).as_posix()
            if path.is_symlink() and path.is_dir():
                raise TeacherError(f"{path} is a link to a folder: copy its files, which the code may read")
            is_unread = any(fnmatch(name, pattern) or fnmatch(path.name, pattern) for pattern in unread)
            if (path.suffix == ".py" or not is_unread) and path.is_file() and path not in weights:
                parts[prefix + name] = sha256_file(path)
    for repository, place in repositories.items():
        files = sorted(place.rglob("*.py"))
        parts |= {f"{repository}/{path.relative_to(place).as_posix()}": sha256_file(path) for path in files}
    return json_digest(parts)
