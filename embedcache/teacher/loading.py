"""Loading arguments: keywords that a model's configuration, tokenizer and weights are loaded with.

A model names its own in ``sentence_bert_config.json``; ``--teacher-arg`` adds to them. Those that change a
vector are part of the contract.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from embedcache.errors import TeacherError
from embedcache.fsio import canonical_json

# Names of the file, in the order in which sentence-transformers looks for them.
_FILES = (
    "sentence_bert_config.json",
    "sentence_roberta_config.json",
    "sentence_distilbert_config.json",
    "sentence_camembert_config.json",
    "sentence_albert_config.json",
    "sentence_xlm-roberta_config.json",
    "sentence_xlnet_config.json",
)
KEYWORDS = {"tokenizer": "processor_kwargs", "config": "config_kwargs", "model": "model_kwargs"}
"""Argument of ``SentenceTransformer`` by kind of loading argument."""
_OLDER_NAMES = {
    "processor_kwargs": "tokenizer_args",
    "config_kwargs": "config_args",
    "model_kwargs": "model_args",
}
_OTHER_SETTINGS = (
    "processing_kwargs",
    "transformer_task",
    "query_length",
    "document_length",
    "query_expansion",
    "tokenizer_name_or_path",
)
# Where and how a model is computed, and access to the hub: no part of a teacher's identity.
_NO_IDENTITY = {
    *("dtype", "torch_dtype", "device_map", "attn_implementation", "_attn_implementation", "max_memory"),
    *("low_cpu_mem_usage", "offload_folder", "offload_state_dict", "use_cache", "use_safetensors", "variant"),
    *("trust_remote_code", "token", "cache_dir", "revision", "code_revision", "local_files_only"),
    *("force_download", "proxies", "subfolder", "use_fast"),
}
_REMEDIES = {
    "dtype": "--compute-dtype",
    "torch_dtype": "--compute-dtype",
    "device_map": "--device",
    "trust_remote_code": "--trust-remote-code",
    "revision": "ID@REVISION",
    "model_max_length": "--max-length",
}
_ENDS = {"add_bos_token": 0, "add_eos_token": -1}
_TEXT_STATES = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_POOLER_OUTPUT = {"text": {"method": "forward", "method_output_name": "pooler_output"}}


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


def parse_arguments(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse ``tokenizer.K=V``, ``config.K=V`` and ``model.K=V``; a value that is no JSON is a string.

    >>> parse_arguments(["tokenizer.add_eos_token=true", "config.is_causal=false"])
    {'tokenizer': {'add_eos_token': True}, 'config': {'is_causal': False}}

    Raises:
        TeacherError: if an argument has another form, or does not belong to a teacher's identity.
    """
    found: dict[str, dict[str, Any]] = {}
    for one in given:
        name, _, text = one.partition("=")
        kind, _, key = name.partition(".")
        if kind not in KEYWORDS or not key.isidentifier() or "=" not in one:
            raise TeacherError(
                f"teacher argument {one!r}: expected tokenizer.K=V, config.K=V or model.K=V, such as "
                "tokenizer.add_eos_token=true"
            )
        if key in _NO_IDENTITY or key in _REMEDIES:
            remedy = f"use {_REMEDIES[key]}" if key in _REMEDIES else "leave it out"
            raise TeacherError(
                f"teacher argument {one!r}: {key} is not part of a teacher's identity; {remedy}"
            )
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        found.setdefault(kind, {})[key] = value
    return found


def keep_other_end(added: dict[str, dict[str, Any]], transformer: Path) -> None:
    """Keep the token at the other end of a text where ``add_bos_token`` or ``add_eos_token`` is added alone.

    transformers builds both ends anew from the two arguments, and takes no for the one that is missing.
    """
    given = added.get("tokenizer", {})
    ends = [name for name in _ENDS if name in given]
    if len(ends) != 1:
        return
    (other,) = _ENDS.keys() - ends
    value = read_json(transformer / "tokenizer_config.json").get(other)
    if value is None:
        processor = read_json(transformer / "tokenizer.json").get("post_processor") or {}
        template = processor.get("single") or [{}]
        value = "SpecialToken" in template[_ENDS[other]]
    given[other] = value


def read_settings(transformer: Path) -> dict[str, Any]:
    """Read the settings that sentence-transformers keeps beside a transformer; empty if there are none.

    Raises:
        TeacherError: if the file is not a JSON object.
    """
    return next(filter(None, (read_json(transformer / name) for name in _FILES)), {})


def own_arguments(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the loading arguments in a model's settings, by kind."""
    found = {kind: settings.get(_OLDER_NAMES[name], settings.get(name)) for kind, name in KEYWORDS.items()}
    return {kind: dict(value) for kind, value in found.items() if isinstance(value, Mapping)}


def describe_loading(
    settings: Mapping[str, Any], added: Mapping[str, Mapping[str, Any]], task: str | None
) -> str | None:
    """Describe as canonical JSON how a model is loaded.

    Args:
        settings: the model's settings, see ``read_settings``.
        added: further arguments by kind, which win over the model's own.
        task: value of ``task`` that the model is called with.

    Returns:
        The text; None if nothing in it changes a vector.
    """
    found: dict[str, Any] = {}
    own = own_arguments(settings)
    for kind in KEYWORDS:
        merged = {**own.get(kind, {}), **added.get(kind, {})}
        # The contract names the length itself.
        found[kind] = {k: v for k, v in merged.items() if k not in _NO_IDENTITY and k != "model_max_length"}
    found |= {name: settings.get(name) for name in _OTHER_SETTINGS}
    if found["transformer_task"] == "feature-extraction":
        del found["transformer_task"]
    # The contract names these two by its pooling.
    if settings.get("modality_config", _TEXT_STATES) not in (_TEXT_STATES, _POOLER_OUTPUT):
        found["modality_config"] = settings["modality_config"]
    found["task"] = task
    used = {name: value for name, value in found.items() if value not in (None, {}, "")}
    return canonical_json(used).decode() if used else None


def replayed(loading: str | None) -> tuple[tuple[str, ...], str | None]:
    """Return the arguments and the task that ``describe_loading`` described, as options give them."""
    used: dict[str, Any] = json.loads(loading) if loading else {}
    arguments = [
        f"{kind}.{key}={json.dumps(value)}" for kind in KEYWORDS for key, value in used.get(kind, {}).items()
    ]
    return tuple(arguments), used.get("task")
