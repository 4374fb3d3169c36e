"""Loading arguments: keywords that a model's configuration, tokenizer and weights are loaded with.

A model has its own in ``sentence_bert_config.json``; ``--teacher-arg`` adds to them. Arguments that change a
vector are part of the contract.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from embedcache.errors import TeacherError
from embedcache.fsio import canonical_json

Arguments: TypeAlias = Mapping[str, Mapping[str, Any]]
"""Keyword and value by kind: ``tokenizer``, ``config`` or ``model``."""

KEYWORDS = {"tokenizer": "processor_kwargs", "config": "config_kwargs", "model": "model_kwargs"}
"""Argument of ``SentenceTransformer`` by kind."""
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
# Where and how a model is computed, and access to the hub.
_NO_IDENTITY = {
    *("dtype", "torch_dtype", "device_map", "attn_implementation", "_attn_implementation", "max_memory"),
    *("low_cpu_mem_usage", "offload_folder", "offload_state_dict", "use_cache", "use_safetensors", "variant"),
    *("trust_remote_code", "token", "cache_dir", "revision", "code_revision", "local_files_only"),
    *("force_download", "proxies", "subfolder", "use_fast"),
}
# Other files, and checks that are switched off. A contract that came from a remote names arguments, too.
_UNSAFE = {
    *("weights_only", "gguf_file", "adapter_kwargs", "adapter_name", "key_mapping", "state_dict", "config"),
    *("ignore_mismatched_sizes", "output_loading_info", "use_kernels", "kernel_config", "tokenizer_object"),
}
_OWN_OPTIONS = {
    "dtype": "--compute-dtype",
    "torch_dtype": "--compute-dtype",
    "device_map": "--device",
    "trust_remote_code": "--trust-remote-code",
    "revision": "ID@REVISION",
    "model_max_length": "--max-length",
}
_PYTHON = {"True": "true", "False": "false", "None": "null"}
_ENDS = {"add_bos_token": 0, "add_eos_token": -1}
_TEXT_STATES = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
_POOLER_OUTPUT = {"text": {"method": "forward", "method_output_name": "pooler_output"}}


def parse_arguments(given: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse ``tokenizer.K=V``, ``config.K=V`` and ``model.K=V``.

    A value is JSON, or True, False or None as in Python; anything else is a string.

    >>> parse_arguments(["tokenizer.add_eos_token=true", "config.hidden_act=relu"])
    {'tokenizer': {'add_eos_token': True}, 'config': {'hidden_act': 'relu'}}

    Raises:
        TeacherError: if an argument has another form, or is not part of a teacher's identity.
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
        if key in _OWN_OPTIONS:
            raise TeacherError(
                f"teacher argument {one!r}: {key} has an option of its own: use {_OWN_OPTIONS[key]}"
            )
        if key in _NO_IDENTITY or key in _UNSAFE or key.endswith("_file"):
            raise TeacherError(
                f"teacher argument {one!r}: {key} is not part of a teacher's identity; leave it out"
            )
        found.setdefault(kind, {})[key] = _parse_value(text)
    return found


def _parse_value(text: str) -> Any:
    try:
        value = json.loads(_PYTHON.get(text, text))
    except ValueError:
        return text
    try:
        canonical_json(value)
    except ValueError as error:
        raise TeacherError(f"teacher argument {text!r}: {error}") from error
    return value


def own_arguments(settings: Mapping[str, Any]) -> Arguments:
    """Return the loading arguments in a model's settings."""
    found = {kind: settings.get(_OLDER_NAMES[name], settings.get(name)) for kind, name in KEYWORDS.items()}
    return {kind: value for kind, value in found.items() if isinstance(value, Mapping)}


def with_other_end(
    added: Arguments, own: Arguments, tokenizer: Mapping[str, Any], config: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Keep the special token at the other end if ``add_bos_token`` or ``add_eos_token`` is added alone.

    transformers rebuilds both ends, and reads a missing argument as false.

    Args:
        added: arguments beside the model's own.
        own: the model's own arguments, which stay as they are.
        tokenizer: content of ``tokenizer.json``.
        config: content of ``tokenizer_config.json``.
    """
    completed = {kind: dict(values) for kind, values in added.items()}
    before = own.get("tokenizer", {})
    merged = {**before, **completed.get("tokenizer", {})}
    ends = [name for name in _ENDS if name in merged]
    if len(ends) == 1 and before.get(ends[0]) != merged[ends[0]]:
        (other,) = _ENDS.keys() - ends
        processor = tokenizer.get("post_processor") or {}
        steps = processor.get("processors", [processor])
        template = next((step["single"] for step in steps if step.get("single")), None)
        if template is not None:
            completed["tokenizer"][other] = "SpecialToken" in template[_ENDS[other]]
        elif any("cls" in step for step in steps):  # those of BERT and RoBERTa have both
            completed["tokenizer"][other] = True
        else:
            completed["tokenizer"][other] = bool(config.get(other))
    return completed


def describe_loading(settings: Mapping[str, Any], added: Arguments, task: str | None) -> str | None:
    """Describe as canonical JSON how a model is loaded.

    Args:
        settings: the model's settings, see ``ModelFolder.settings``.
        added: further arguments, which win over the model's own.
        task: value of ``task`` that the model is called with.

    Returns:
        The text; None if nothing in it changes a vector.
    """
    found: dict[str, Any] = {}
    own = own_arguments(settings)
    for kind in KEYWORDS:
        merged = {**own.get(kind, {}), **added.get(kind, {})}
        # The contract has a field for the length.
        found[kind] = {k: v for k, v in merged.items() if k not in _NO_IDENTITY and k != "model_max_length"}
    found |= {name: settings.get(name) for name in _OTHER_SETTINGS}
    if found["transformer_task"] == "feature-extraction":
        del found["transformer_task"]
    # The contract's pooling tells these two apart.
    if settings.get("modality_config", _TEXT_STATES) not in (_TEXT_STATES, _POOLER_OUTPUT):
        found["modality_config"] = settings["modality_config"]
    found["task"] = task
    used = {name: value for name, value in found.items() if value not in (None, {}, "")}
    return canonical_json(used).decode() if used else None


def replayed(loading: str | None) -> tuple[tuple[str, ...], str | None]:
    """Return the arguments and the task that ``describe_loading`` described, as options take them.

    Raises:
        TeacherError: if the text is not such a description.
    """
    try:
        used = json.loads(loading) if loading else {}
        arguments = [
            f"{kind}.{key}={json.dumps(value)}"
            for kind in KEYWORDS
            for key, value in used.get(kind, {}).items()
        ]
        return tuple(arguments), used.get("task")
    except (ValueError, AttributeError) as error:
        raise TeacherError(
            f"a contract's loading {str(loading)[:80]!r} names no loading arguments; it needs an upgrade of "
            "embedcache"
        ) from error
