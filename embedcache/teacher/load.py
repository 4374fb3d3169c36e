"""Any sentence encoder as a teacher: frozen, with the contract of its vectors."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError, PoolingNeededError, TeacherError
from embedcache.teacher.classifier import ClassifierHead, logits_contract, logits_name
from embedcache.teacher.model_folder import (
    architecture_digest,
    tokenizer_digest,
    transformer_folder,
    weights_digest,
)
from embedcache.teacher.modules import (
    load_model,
    modules_after_pooling,
    pooling_of,
    set_normalize,
)
from embedcache.teacher.modules import quiet_transformers as quiet_transformers
from embedcache.teacher.options import LOGITS, PROJECTION, QUANTIZATIONS, TeacherOptions
from embedcache.teacher.resolve import ModelSource, is_served, resolve
from embedcache.teacher.served import load_served, refuse_local_settings
from embedcache.teacher.teacher import Teacher as Teacher

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Words of --pooling, and of the contract. SimCSE calls the raw [CLS] state "cls before pooler"; "cls" in its
# code is the pooler output.
POOLINGS = {
    "mean": "mean",
    "cls-before-pooler": "cls",
    "cls": "cls",
    "pooler": "pooler",
    "last": "lasttoken",
}
_WORD_OF = {mode: word for word, mode in POOLINGS.items()}
_SHIFTED_POSITIONS = ("roberta", "xlm-roberta", "mpnet", "camembert")
_UNLIMITED = 1_000_000


def load_teacher(
    spec: str | Path,
    *,
    pooling: str | None = None,
    prompt: str | None = None,
    max_length: int | None = None,
    truncate_dim: int | None = None,
    normalize: bool | None = None,
    quantize: str | None = None,
    name: str | None = None,
    device: str = "auto",
    trust_remote_code: bool = False,
) -> Teacher:
    """Load a teacher and derive its contract.

    Args:
        spec: alias, hub id with optional ``@revision``, local folder (of sentence-transformers or of plain
            transformers), or ``openai:MODEL[@URL]``.
        pooling: one of ``POOLINGS``; required for a plain transformers folder, an override for any other.
        prompt: text put before every sentence; default: the alias's or the model's own default prompt.
        max_length: truncate texts to this many tokens; default: the model's own.
        truncate_dim: leading dimensions that are kept; default: the model's own.
        normalize: scale vectors to length one; default: as the model does.
        quantize: ``int8``, or None for the model as it is.
        name: name in a cache; default: the alias, the folder's name or the hub id's last part.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps`` ...
        trust_remote_code: run code that comes with the model.

    Raises:
        TeacherError: if the teacher is unknown or damaged, or cannot give the vectors asked for.
        InputError: if a served teacher is given settings that its server does not take.
    """
    if is_served(spec):
        refuse_local_settings(
            TeacherOptions(
                spec,
                pooling=pooling,
                max_length=max_length,
                normalize=normalize,
                quantize=quantize,
                trust_remote_code=trust_remote_code,
            )
        )
        return load_served(spec, prompt=prompt, truncate_dim=truncate_dim, name=name)
    if quantize is not None and quantize not in QUANTIZATIONS:
        raise TeacherError(f"unknown quantization {quantize!r}: use {', '.join(QUANTIZATIONS)}")
    source = resolve(spec)
    source = replace(source, name=source.name if name is None else name)
    if not re.fullmatch(r"\w[\w.-]*", source.name):
        raise TeacherError(
            f"{source.name!r} cannot name a teacher in a cache: use letters, digits, '.', '_' and '-'; "
            "give another name (--teacher-name)"
        )
    folder, alias = source.folder, source.alias
    if not (folder / "config.json").exists() and not (folder / "modules.json").exists():
        raise TeacherError(f"{folder} is not a model folder: no config.json or modules.json")
    pooling = pooling or (alias.pooling if alias else None)
    _check_pooling(folder, pooling)
    transformer = transformer_folder(folder)
    weights, tensor_names = weights_digest(folder)
    model = load_model(folder, transformer, POOLINGS[pooling] if pooling else None, trust_remote_code)
    if pooling_of(model) == "pooler" and not any("pooler.dense.weight" in tensor for tensor in tensor_names):
        raise TeacherError(f"{folder} has no pooler weights: choose another pooling (mean, cls, last)")
    if normalize is not None:
        set_normalize(model, normalize)
    model.requires_grad_(False).eval()
    _move_to(model, "cpu" if quantize and device == "auto" else device)  # OpenVINO's
    if max_length is not None:
        _set_max_length(model, max_length, source.name)
    width = _set_truncation(model, truncate_dim, source)
    if prompt is None:
        own = str(model.prompts[model.default_prompt_name]) if model.default_prompt_name else ""
        prompt = (alias.prompt if alias else "") or own
    length = model.max_seq_length
    contract = Contract(
        weights=weights,
        tokenizer=tokenizer_digest(transformer),
        architecture=architecture_digest(transformer),
        pooling=pooling_of(model),
        modules=modules_after_pooling(model),
        prompt=prompt,
        max_length=int(length) if length is not None and length < _UNLIMITED else 0,
        normalize=any(type(module).__name__ == "Normalize" for module in model),
        truncate_dim=model.truncate_dim,
        dimension=width,
        quantization=QUANTIZATIONS[quantize] if quantize else None,
    )
    return Teacher(source, model, contract)


def logits_teacher(teacher: Teacher) -> Teacher:
    """Teacher of the logits of the classifier in ``teacher``'s folder, on the same model.

    Raises:
        TeacherError: if there is no classifier, or the model does not give the vectors it takes.
        CorruptCacheError: if the classifier's files are damaged.
    """
    head = ClassifierHead.read(teacher.folder)
    if head is None:
        raise TeacherError(
            f"{teacher.folder} has no classifier, so no logits: train one with 'distill finetune --labels', "
            "or leave output out"
        )
    kinds = [type(module).__name__ for module in teacher.model]
    if "Normalize" in kinds[:-1]:
        raise TeacherError(
            f"{teacher.folder} scales vectors before its last module ({', '.join(kinds)}), and a classifier "
            "takes them unscaled: run 'distill finetune --labels' on another model"
        )
    # The model's own figure is that of truncated vectors.
    widths = [m.get_embedding_dimension() for m in teacher.model if hasattr(m, "get_embedding_dimension")]
    if head.dimension != widths[-1]:
        raise TeacherError(
            f"the classifier in {teacher.folder} takes vectors of {head.dimension} dimensions, the model "
            f"gives {widths[-1]}: copy the folder again"
        )
    source = replace(teacher.source, name=logits_name(teacher.name))
    return replace(teacher, source=source, contract=logits_contract(teacher.contract, head), head=head)


def load_by_contract(
    spec: str | Path,
    contract: Contract,
    *,
    name: str,
    remedy: str,
    device: str = "cpu",
    trust_remote_code: bool = False,
) -> Teacher:
    """Load the teacher of a contract, with the settings in it.

    Args:
        spec: alias, hub id or folder.
        contract: contract of the vectors; its settings override the model's own.
        name: the teacher's name.
        remedy: remedy in the message about another model.
        device: ``auto``, ``cpu``, ``cuda`` ...
        trust_remote_code: run code that comes with the model.

    Raises:
        TeacherError: if the model cannot be loaded or lacks its classifier, or the contract is that of a
            projection.
        ContractMismatchError: if the model is another teacher now; it names the fields that differ.
    """
    if contract.output == PROJECTION:
        raise TeacherError(
            f"teacher {name!r} is a projection of another teacher's vectors, which no model gives: use "
            "'distill kb project --apply'"
        )
    if contract.is_served and not is_served(spec):
        raise TeacherError(
            f"teacher {name!r} is served, and this machine has not built with it: give its server, "
            f"{contract.weights!r}, with teacher_model if you trust it with your texts"
        )
    teacher = load_teacher(
        spec,
        pooling=_WORD_OF.get(contract.pooling),
        prompt=contract.prompt,
        max_length=contract.max_length or None,
        truncate_dim=contract.truncate_dim,
        normalize=None if contract.is_served else contract.normalize,
        quantize={value: word for word, value in QUANTIZATIONS.items()}.get(contract.quantization or ""),
        name=name,
        device=device,
        trust_remote_code=trust_remote_code,
    )
    if contract.output == LOGITS:
        # The given name is that of the logits already.
        teacher = replace(logits_teacher(teacher), source=teacher.source)
    if differences := contract.differences(teacher.contract):
        raise ContractMismatchError(
            f"the model found for teacher {name!r} is not the one of its vectors "
            f"({describe_differences(differences)}): {remedy}",
            differences,
        )
    return teacher


def _check_pooling(folder: Path, pooling: str | None) -> None:
    if pooling is not None and pooling not in POOLINGS:
        raise TeacherError(f"unknown pooling {pooling!r}: use one of {', '.join(POOLINGS)}")
    if pooling is None and not (folder / "modules.json").exists():
        raise PoolingNeededError(
            f"{folder} is a plain transformers folder, which does not name its pooling: give pooling "
            f"{'|'.join(POOLINGS)} (see the model's documentation)"
        )


def _move_to(model: SentenceTransformer, device: str) -> None:
    from sentence_transformers.util import get_device_name

    try:
        model.to(get_device_name() if device == "auto" else device)
    except (RuntimeError, AssertionError) as error:
        raise TeacherError(f"cannot use device {device!r}: {str(error).splitlines()[0]}") from error


def _set_max_length(model: SentenceTransformer, max_length: int, name: str) -> None:
    config: Any = getattr(model[0], "config", None)
    limit = getattr(config, "max_position_embeddings", None)
    if not isinstance(limit, int) or limit <= 0:
        limit = max_length
    elif config.model_type in _SHIFTED_POSITIONS:
        # The position tables of these architectures start after the padding index.
        limit -= (config.pad_token_id or 0) + 1
    if not 0 < max_length <= limit:
        raise TeacherError(f"max_length {max_length}: expected 1 to {max(1, limit)} tokens for {name}")
    model.max_seq_length = max_length


def _set_truncation(model: SentenceTransformer, truncate_dim: int | None, source: ModelSource) -> int:
    """Truncate vectors to ``truncate_dim`` dimensions, None for the model's own; return their width."""
    width = model.get_embedding_dimension()
    if not isinstance(width, int):
        raise TeacherError(
            f"cannot load {source.folder}: its modules give their width as {width!r}, expected a whole "
            "number; copy the model again"
        )
    if truncate_dim is None:
        truncate_dim = None if model.truncate_dim is None else int(model.truncate_dim)
    elif not 0 < truncate_dim <= width:
        raise TeacherError(f"truncate_dim {truncate_dim}: {source.name} gives {width} dimensions")
    model.truncate_dim = truncate_dim
    return truncate_dim or width
