"""Any sentence encoder as a teacher: frozen, with the contract of its vectors."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedcache.contract import Contract, describe_differences
from embedcache.errors import ContractMismatchError, PoolingNeededError, TeacherError, first_line
from embedcache.teacher.aliases import ALIASES
from embedcache.teacher.arguments import (
    describe_loading,
    own_arguments,
    parse_arguments,
    replayed,
    with_other_end,
)
from embedcache.teacher.classifier import ClassifierHead, logits_contract, logits_name
from embedcache.teacher.model_folder import ADAPTER, ModelFolder, choose_route, read_json, read_prompts
from embedcache.teacher.modules import (
    cut_to_positions,
    is_normalized,
    load_model,
    modules_after_pooling,
    pooling_of,
    set_max_length,
    set_normalize,
    takes_task,
    token_limit,
)
from embedcache.teacher.modules import quiet_transformers as quiet_transformers
from embedcache.teacher.options import LOGITS, PROJECTION, QUANTIZATIONS, TeacherOptions
from embedcache.teacher.own_code import code_digest, mapped_code, module_code
from embedcache.teacher.resolve import ModelSource, is_served, resolve
from embedcache.teacher.served import load_served, refuse_local_settings
from embedcache.teacher.teacher import Teacher as Teacher

if TYPE_CHECKING:
    import torch
    from sentence_transformers import SentenceTransformer

# --pooling value -> contract value. SimCSE calls the raw [CLS] state "cls before pooler"; "cls" in its
# code is the pooler output.
POOLINGS = {
    "mean": "mean",
    "cls-before-pooler": "cls",
    "cls": "cls",
    "pooler": "pooler",
    "last": "lasttoken",
}
_WORD_OF = {mode: word for word, mode in POOLINGS.items()}


def load_teacher(
    teacher: str | Path | TeacherOptions,
    *,
    device: str = "auto",
    dtype: torch.dtype | None = None,
    **settings: Any,
) -> Teacher:
    """Load a teacher and derive its contract.

    >>> load_teacher("minilm-l6", max_length=128).contract.dimension  # doctest: +SKIP
    384

    Args:
        teacher: alias, hub id with optional ``@revision``, local folder (of sentence-transformers or of plain
            transformers), or ``openai:MODEL[@URL]``; or options with one of these.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps`` ...
        dtype: dtype of the weights in memory; default: as the files have them.
        settings: fields of ``TeacherOptions`` to set, such as ``pooling="mean"``.

    Raises:
        TeacherError: if the teacher is unknown or damaged, or cannot give the vectors asked for.
        InputError: if a served teacher is given settings that its server does not take.
        MissingExtraError: if the teacher is an adapter, and peft is not installed.
    """
    given = teacher if isinstance(teacher, TeacherOptions) else TeacherOptions(teacher)
    options = replace(given, **settings)
    return load_source(resolve_teacher(options), options, device, dtype)


def resolve_teacher(options: TeacherOptions, *, local: bool = False) -> ModelSource:
    """Find a teacher's model, under the name that it has in a cache.

    Args:
        options: the teacher.
        local: download nothing.

    Raises:
        TeacherError: as ``resolve``; also if the name or a setting is invalid, or the model needs own code.
    """
    if options.quantize is not None and options.quantize not in QUANTIZATIONS:
        raise TeacherError(f"unknown quantization {options.quantize!r}: use {', '.join(QUANTIZATIONS)}")
    parse_arguments(options.arguments)
    alias = ALIASES.get(options.spec.partition("@")[0]) if isinstance(options.spec, str) else None
    if alias is not None and alias.needs_code and not options.trust_remote_code:
        raise TeacherError(
            f"{alias.model_id} runs only with its own code; none of it was run. If you trust its "
            "authors, add trust_remote_code"
        )
    source = resolve(options.spec, code=options.trust_remote_code, local=local)
    source = replace(source, name=options.name_for(source.name))
    if not re.fullmatch(r"\w[\w.-]*", source.name):
        raise TeacherError(
            f"{source.name!r} cannot name a teacher in a cache: use letters, digits, '.', '_' and '-'; "
            "give another name (--teacher-name)"
        )
    return source


def load_source(
    source: ModelSource,
    options: TeacherOptions,
    device: str,
    dtype: torch.dtype | None = None,
    route: str | None = None,
) -> Teacher:
    """Load a teacher that ``resolve_teacher`` has found; ``route`` wins over the task.

    Other arguments and errors as ``load_teacher``.
    """
    if source.server is not None:
        refuse_local_settings(options)
        return load_served(
            options.spec, prompt=options.prompt, truncate_dim=options.truncate_dim, name=source.name
        )
    alias, path = source.alias, source.folder
    if not any((path / name).exists() for name in ("config.json", "modules.json", ADAPTER)):
        raise TeacherError(f"{path} is not a model folder: no config.json or modules.json")
    pooling = options.pooling or (alias.pooling if alias else None)
    _check_pooling(path, pooling)
    folder = ModelFolder(path, route or choose_route(path, options.task), source.base)
    task = None if folder.route else options.task
    # A later argument wins, so that an option wins over the alias.
    given = parse_arguments([*(alias.arguments if alias else ()), *options.arguments])
    files = ("tokenizer.json", "tokenizer_config.json")
    own = own_arguments(folder.settings)
    added = with_other_end(given, own, *(read_json(folder.transformer / name) for name in files))
    tokenizer = folder.tokenizer_digest()
    weights, tensor_names = folder.weights_digest()
    model = load_model(
        folder,
        POOLINGS[pooling] if pooling else None,
        trust_remote_code=options.trust_remote_code,
        arguments=added,
        dtype=dtype,
    )
    if pooling_of(model) == "pooler" and not any("pooler.dense.weight" in tensor for tensor in tensor_names):
        raise TeacherError(f"{path} has no pooler weights: choose another pooling (mean, cls, last)")
    if task is not None and not takes_task(model):
        raise TeacherError(f"task {task!r}: {source.name} takes no task; leave it out")
    if options.normalize is not None:
        set_normalize(model, options.normalize)
    model.requires_grad_(False).eval()
    # OpenVINO computes on the CPU.
    _move_to(model, "cpu" if options.quantize and device == "auto" else device)
    if options.max_length is not None:
        set_max_length(model, options.max_length, source.name)
    width = _set_truncation(model, options.truncate_dim, source)
    runs_code = options.trust_remote_code and (module_code(folder) or mapped_code(folder))
    contract = Contract(
        weights=weights,
        tokenizer=tokenizer,
        architecture=folder.architecture_digest(),
        pooling=pooling_of(model),
        modules=modules_after_pooling(model),
        prompt=_prompt(model, options, source),
        max_length=token_limit(model),
        normalize=is_normalized(model),
        truncate_dim=model.truncate_dim,
        dimension=width,
        quantization=QUANTIZATIONS[options.quantize] if options.quantize else None,
        loading=describe_loading(folder.settings, added, task),
        code=code_digest(folder, source.code) if runs_code else None,
    )
    cut_to_positions(model)
    teacher = Teacher(source, model, contract, task=task, route=folder.route)
    _read_text(teacher)
    return teacher


def _read_text(teacher: Teacher) -> dict[str, Any]:
    """Return the model's input for a text; ``TeacherError`` if it takes none."""
    call = {} if teacher.task is None else {"task": teacher.task}
    try:
        found: dict[str, Any] = teacher.model.preprocess(
            ["A text"], prompt=teacher.contract.prompt or None, **call
        )
    except Exception as error:  # Rust tokenizers raise nothing narrower
        reason = first_line(error)
        raise TeacherError(f"{teacher.folder} cannot read a text: {reason}") from error
    return found


def _prompt(model: SentenceTransformer, options: TeacherOptions, source: ModelSource) -> str:
    """Return the prompt asked for, else that of the alias, else the model's default."""
    if options.prompt_name is not None:
        prompts = read_prompts(source.folder)
        if options.prompt_name not in prompts:
            known = f"it has {', '.join(sorted(prompts))}" if prompts else "it has no prompts"
            raise TeacherError(
                f"prompt_name {options.prompt_name!r}: the model has no such prompt; {known}. Use one of "
                "its names, or give the text with prompt"
            )
        return prompts[options.prompt_name]
    if options.prompt is not None:
        return options.prompt
    own = str(model.prompts[model.default_prompt_name]) if model.default_prompt_name else ""
    return (source.alias.prompt if source.alias else "") or own


def warn_of_last_word(teacher: Teacher) -> None:
    """Warn if last-token pooling reads a word, not a special token."""
    first: Any = teacher.model[0] if teacher.model else None
    tokenizer = getattr(first, "tokenizer", None)
    if teacher.contract.pooling != "lasttoken" or tokenizer is None:
        return
    ids = _read_text(teacher).get("input_ids")
    if ids is not None and int(ids[0][-1]) not in tokenizer.all_special_ids:
        logging.getLogger(__name__).warning(
            "%s pools the last token, and its tokenizer ends texts with a word, not with a special token. If "
            "the model was trained with one at the end, add --teacher-arg tokenizer.add_eos_token=true",
            teacher.name,
        )


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
    dtype: torch.dtype | None = None,
    trust_remote_code: bool = False,
    local: bool = False,
) -> Teacher:
    """Load the teacher of a contract, with the settings in it.

    Args:
        spec: alias, hub id or folder.
        contract: contract of the vectors; its settings override the model's own.
        name: the teacher's name.
        remedy: remedy in the message about another model.
        device: ``auto``, ``cpu``, ``cuda`` ...
        dtype: dtype of the weights in memory; default: as the files have them.
        trust_remote_code: run code that comes with the model.
        local: download nothing.

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
    arguments, task = replayed(contract.loading)
    options = TeacherOptions(
        spec,
        pooling=_WORD_OF.get(contract.pooling),
        prompt=contract.prompt,
        max_length=contract.max_length or None,
        truncate_dim=contract.truncate_dim,
        normalize=None if contract.is_served else contract.normalize,
        quantize={value: word for word, value in QUANTIZATIONS.items()}.get(contract.quantization or ""),
        name=name,
        trust_remote_code=trust_remote_code,
        arguments=arguments,
        task=task,
    )
    source = resolve_teacher(options, local=local)
    teacher = load_source(source, options, device, dtype, _route_of(source, contract))
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


def _route_of(source: ModelSource, contract: Contract) -> str | None:
    """Return the route of a Router model that has the weights and the tokenizer of a contract."""
    for folder in ModelFolder.of_routes(source.folder):
        if folder.route is None or folder.tokenizer_digest() != contract.tokenizer:
            continue
        if replace(folder, base=source.base).weights_digest()[0] == contract.weights:
            return folder.route
    return None


def _check_pooling(folder: Path, pooling: str | None) -> None:
    if pooling is not None and pooling not in POOLINGS:
        raise TeacherError(f"unknown pooling {pooling!r}: use one of {', '.join(POOLINGS)}")
    if pooling is None and not (folder / "modules.json").exists():
        raise PoolingNeededError(
            f"{folder} is a plain transformers folder, which does not name its pooling: give pooling "
            f"{'|'.join(POOLINGS)} (see the model's documentation)"
        )


def resolve_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is a GPU if there is one.

    Raises:
        TeacherError: if there is no such device.
    """
    import torch
    from sentence_transformers.util import get_device_name

    try:
        return torch.device(get_device_name() if name == "auto" else name)
    except RuntimeError as error:
        raise TeacherError(f"cannot use device {name!r}: {str(error).splitlines()[0]}") from error


def resolve_dtype(name: str, device: str) -> torch.dtype:
    """Return the dtype of a name on a device of a name; errors as the two functions that resolve them."""
    from embedcache.teacher.inference import resolve_compute_dtype

    return resolve_compute_dtype(name, resolve_device(device))


def _move_to(model: SentenceTransformer, device: str) -> None:
    try:
        model.to(resolve_device(device))
    except (RuntimeError, AssertionError) as error:
        raise TeacherError(f"cannot use device {device!r}: {str(error).splitlines()[0]}") from error


def _set_truncation(model: SentenceTransformer, truncate_dim: int | None, source: ModelSource) -> int:
    """Truncate vectors to ``truncate_dim`` dimensions, None for the model's own; return their width."""
    width = model.get_embedding_dimension()
    if not isinstance(width, int) or width < 1:
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
