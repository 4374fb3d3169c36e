"""Files of a model folder: its modules, the weights that are loaded, and digests of what the libraries read.

Digests are taken from files, not from loaded objects, so a library version does not rename a teacher. They
are taken from contents, not from bytes, so the same tensors in one file, in several, or in another container
are the same weights.
"""

from __future__ import annotations

import ast
import hashlib
import json
import pickle
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, TypeAdapter

from embedcache.errors import TeacherError
from embedcache.fsio import json_digest, sha256_file
from embedcache.teacher.arguments import own_arguments

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
_VOLATILE_ADAPTER = {
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "parent_library", "peft_version"),
    *("revision", "task_type"),
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
# Names of the settings of sentence-transformers, in the order in which it looks for them.
_SETTINGS_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
_SLOW_TOKENIZER_FILES = ("vocab.txt", "vocab.json", "merges.txt", "sentencepiece.bpe.model", "spiece.model")
_CLASSIFIER_WEIGHTS = "classifier.safetensors"
ADAPTER = "adapter_config.json"
"""File of a PEFT adapter, which names its base model."""


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

    @property
    def is_router(self) -> bool:
        """True for a module that holds a chain of modules for each kind of input."""
        return self.type.rpartition(".")[2] in ("Router", "Asym") and self.type.startswith(LIBRARY)


class _RouterFile(BaseModel):
    types: dict[Annotated[str, AfterValidator(_inside)], str]
    structure: dict[str, list[str]]
    parameters: dict[str, Any] = {}


LIBRARY = "sentence_transformers."
_MODULES = TypeAdapter(list[ModuleEntry])


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file of a model; an empty one if there is no file.

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


def read_prompts(folder: Path) -> dict[str, str]:
    """Read the prompts that a model comes with, by name; empty if it has none, or empty ones alone.

    Raises:
        TeacherError: if its file is not a JSON object.
    """
    found = read_json(folder / "config_sentence_transformers.json").get("prompts") or {}
    return {str(name): str(prompt or "") for name, prompt in found.items()} if any(found.values()) else {}


def _read_router(folder: Path) -> _RouterFile:
    path = folder / "router_config.json"
    path = path if path.exists() else folder / "config.json"
    try:
        return _RouterFile.model_validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TeacherError(f"{path} does not describe a router; copy the model again") from error


def find_routes(folder: Path) -> list[str]:
    """Return the names of a Router model's routes; an empty list for any other model."""
    routers = [_read_router(folder / entry.path) for entry in read_modules(folder) if entry.is_router]
    return list(routers[0].structure) if routers else []


def choose_route(folder: Path, task: str | None) -> str | None:
    """Return the route that sentence-transformers takes for a text; None if the model is no Router model.

    Raises:
        TeacherError: if there is none for the task, or none without a task.
    """
    routers = [_read_router(folder / entry.path) for entry in read_modules(folder) if entry.is_router]
    if not routers:
        return None
    names, given = list(routers[0].structure), routers[0].parameters
    mapped: dict[object, str] = {}
    with suppress(ValueError, SyntaxError, AttributeError):
        mapped = {ast.literal_eval(key): name for key, name in (given.get("route_mappings") or {}).items()}
    first = names[0] if names and given.get("allow_empty_key", True) else None
    for key in ((task, "text"), (task, None), (None, "text"), (None, None)):
        if key in mapped:
            return mapped[key]
    route = task or ("text" if "text" in names else given.get("default_route") or first)
    if route not in names:
        found = f"no route {task!r}" if task else "several routes, and none by default"
        raise TeacherError(f"{folder} has {found}: expected task {' or '.join(names)}")
    return route


@dataclass(frozen=True)
class ModelFolder:
    """Model folder as the libraries read it.

    Attributes:
        path: the folder.
        route: route of a Router model, whose modules alone count.
        base: folder of the base model of an adapter.
    """

    path: Path
    route: str | None = None
    base: Path | None = None

    @cached_property
    def modules(self) -> list[tuple[str, ModuleEntry]]:
        """Modules in the order they run, each under its name in the digest of the weights.

        The modules of a route have the names of a plain model's, so both have the same contract.
        """
        found: list[tuple[str, ModuleEntry]] = []
        is_routed = False
        for entry in read_modules(self.path):
            inner = [entry]
            if entry.is_router:
                is_routed, router = True, _read_router(self.path / entry.path)
                chain = router.structure.get(self.route or "", [])
                inner = [
                    ModuleEntry(type=router.types[one], path=str(PurePosixPath(entry.path) / one))
                    for one in chain
                    if one in router.types
                ]
            for one in inner:
                name = f"{len(found)}_{one.type.rpartition('.')[2]}" if is_routed else one.path
                found.append((name, one))
        return found

    @classmethod
    def of_routes(cls, path: Path) -> list[ModelFolder]:
        """Return a model's folder once for each route; once if it is no Router model."""
        return [cls(path, route) for route in find_routes(path) or (None,)]

    @property
    def transformer(self) -> Path:
        """Folder of the transformer: as a rule the model's own, ``0_Transformer`` in the older layout."""
        return self.path / self.modules[0][1].path if self.modules else self.path

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Settings that sentence-transformers keeps beside the transformer."""
        return next(filter(None, (read_json(self.transformer / name) for name in _SETTINGS_FILES)), {})

    @property
    def config(self) -> dict[str, Any]:
        """``config.json`` of the transformer; for an adapter, of its base model."""
        return read_json((self.base or self.transformer) / "config.json")

    def weight_files(self) -> list[tuple[str, Path]]:
        """List the weight files that are loaded, each under the name of its module; "." is the transformer.

        Raises:
            TeacherError: if there are no weights.
        """
        first = self.transformer
        found = [(".", path) for path in self._transformer_weights(first)]
        if (first / ADAPTER).exists():
            found += [
                (".", path) for path in _first_of(first, "adapter_model.safetensors", "adapter_model.bin")
            ]
            if self.base is not None:
                found += [("base", path) for path in self._transformer_weights(self.base)]
        # A folder without modules.json may still be one of this package, with its classifier.
        found += [(".", path) for path in _first_of(first, _CLASSIFIER_WEIGHTS)]
        for name, entry in self.modules[1:]:
            if (place := self.path / entry.path) != first:
                found += [(name, one) for one in _first_of(place, "model.safetensors", "pytorch_model.bin")]
        if not any(path.name != _CLASSIFIER_WEIGHTS for _, path in found):
            raise TeacherError(f"no weights in {self.path}: expected model.safetensors or pytorch_model.bin")
        return found

    def _transformer_weights(self, folder: Path) -> list[Path]:
        """Return the files that transformers chooses, in its own order of preference."""
        own = own_arguments(self.settings).get("model", {})
        if explicit := read_json(folder / "config.json").get("transformers_weights"):
            return _with_parts(folder, str(explicit))
        variant = f".{own['variant']}" if own.get("variant") else ""
        names = []
        if own.get("use_safetensors") is not False:
            names += [f"model{variant}.safetensors", f"model.safetensors.index{variant}.json"]
        if not own.get("use_safetensors"):
            names += [f"pytorch_model{variant}.bin", f"pytorch_model.bin.index{variant}.json"]
        chosen = _first_of(folder, *names)
        return _with_parts(folder, chosen[0].name) if chosen else []

    def weights_digest(self) -> tuple[str, list[str]]:
        """Digest all weight tensors.

        The transformer's tensors have the same names in every layout, so its place does not rename a teacher.

        Returns:
            The digest, and the tensors' names.

        Raises:
            TeacherError: if there are no weights, or a file is damaged or holds more than tensors.
        """
        import torch

        entries: dict[str, str] = {}
        for place, path in self.weight_files():
            for name, tensor in read_tensors(path):
                data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
                digest = hashlib.sha256(data.data).hexdigest()
                entries[f"{place}/{name}"] = f"{tensor.dtype}:{list(tensor.shape)}:{digest}"
        return json_digest(entries), sorted(entries)

    def architecture_digest(self) -> str:
        """Digest ``config.json``, and an adapter's own, without the fields that change no vector."""
        config = {key: value for key, value in self.config.items() if key not in _VOLATILE_CONFIG}
        if adapter := read_json(self.transformer / ADAPTER):
            config[ADAPTER] = {k: v for k, v in adapter.items() if k not in _VOLATILE_ADAPTER}
        return json_digest(config)

    def tokenizer_digest(self) -> str:
        """Digest the tokenizer: ``tokenizer.json`` if there is one, else the vocabulary files.

        Padding and truncation are left out because every call sets its own, except the side a text is cut on.

        Raises:
            TeacherError: if the folder holds no tokenizer, or its settings name one in another place.
        """
        folder = self.transformer
        own = own_arguments(self.settings).get("tokenizer", {})
        elsewhere = [name for name in own if name.endswith("_file")]
        if self.settings.get("tokenizer_name_or_path"):
            elsewhere.append("tokenizer_name_or_path")
        if elsewhere:
            raise TeacherError(
                f"{self.path} takes its tokenizer from another place ({', '.join(elsewhere)} in its "
                "settings): copy the tokenizer's files into the folder"
            )
        parts: dict[str, object]
        if fast := read_json(folder / "tokenizer.json"):
            parts = {"tokenizer.json": {k: v for k, v in fast.items() if k not in ("padding", "truncation")}}
        else:
            files = [folder / name for name in _SLOW_TOKENIZER_FILES if (folder / name).exists()]
            parts = {path.name: sha256_file(path) for path in files}
        if not parts:
            raise TeacherError(
                f"no tokenizer in {folder}: expected tokenizer.json or one of "
                f"{', '.join(_SLOW_TOKENIZER_FILES)}"
            )
        config = read_json(folder / "tokenizer_config.json")
        for name in config.get("fast_tokenizer_files") or ():
            if (folder / _inside(str(name))).is_file() and name != "tokenizer.json":
                parts[str(name)] = sha256_file(folder / str(name))
        parts["tokenizer_config.json"] = {
            k: v for k, v in config.items() if k not in _VOLATILE_TOKENIZER_CONFIG
        }
        direction = (fast.get("truncation") or {}).get("direction")
        side = str(config.get("truncation_side") or direction or "right").lower()
        # Only the unusual side is noted, so spelling out the default does not rename a teacher.
        if side != "right":
            parts["truncation_side"] = side
        parts["do_lower_case"] = self.settings.get("do_lower_case", False)
        return json_digest(parts)


def _first_of(folder: Path, *names: str) -> list[Path]:
    """Return the first of these files that exists, if any."""
    return [path for name in names if (path := folder / name).is_file()][:1]


def _with_parts(folder: Path, name: str) -> list[Path]:
    """Return a weight file, or the files that an index of weights names."""
    try:
        path = folder / _inside(name)
        if path.suffix != ".json":
            return [path]
        names = read_json(path).get("weight_map", {}).values()
        return sorted({path.parent / _inside(str(one)) for one in names})
    except ValueError as error:
        raise TeacherError(f"{folder}: weights of the model: {error}; copy the model again") from error


def read_tensors(path: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Read the tensors of a weight file one by one; a pickle may hold tensors alone."""
    import torch
    from safetensors import SafetensorError, safe_open

    reason = "it is not a mapping of tensors"
    try:
        if path.suffix == ".safetensors":
            with safe_open(path, "pt") as file:
                for name in file.keys():  # noqa: SIM118 - no mapping
                    yield name, file.get_tensor(name)
            return
        # Files from before PyTorch 1.6 are not zip archives and cannot be mapped.
        mmap = zipfile.is_zipfile(path)
        state: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
        if isinstance(state, dict) and all(isinstance(one, torch.Tensor) for one in state.values()):
            yield from state.items()
            return
    except (SafetensorError, pickle.UnpicklingError, RuntimeError, EOFError, FileNotFoundError) as error:
        reason = str(error).partition("\n")[0]
    raise TeacherError(f"{path} is damaged or holds more than tensors ({reason}): copy the safetensors form")
