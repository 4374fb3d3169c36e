"""A transformers model as the first module of a sentence-transformers model."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from distill.errors import StudentError
from embedcache.teacher.load import quiet_transformers

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from transformers import PreTrainedModel


def transformer_of(teacher: SentenceTransformer, student: str) -> Any:
    """Return the first module of a teacher whose tokenizer a student takes over.

    Args:
        teacher: the teacher.
        student: the student's spec, for messages.

    Raises:
        StudentError: if it is no transformer, or its tokenizer has no fast (Rust) backend.
    """
    first: Any = teacher[0]
    if getattr(first, "model", None) is None:
        raise StudentError(
            f"student {student!r}: the teacher is a {type(first).__name__}, and this student takes layers or "
            "a tokenizer over from a transformer; choose a teacher that is one"
        )
    tokenizer = getattr(first, "tokenizer", None)
    if not getattr(tokenizer, "is_fast", False):
        raise StudentError(
            f"student {student!r}: the teacher's tokenizer is a {type(tokenizer).__name__} without a "
            "fast (Rust) backend that could be taken over; choose another teacher"
        )
    return first


def as_module(model: PreTrainedModel, tokenizer: Any, like: Any) -> Transformer:
    """Return ``model`` and ``tokenizer`` as a module, set up as it will be when it is opened from a folder.

    Args:
        model: a model with its weights; it is not copied.
        tokenizer: its transformers tokenizer; it is copied.
        like: the teacher's first module, whose way of cutting texts is taken over.

    Raises:
        StudentError: if the tokenizer has no padding token.
    """
    from sentence_transformers.base.modules import Transformer

    if tokenizer.pad_token_id is None:
        raise StudentError(
            "the teacher's tokenizer has no padding token, and its student could not read texts of unequal "
            "length at once; give it one (tokenizer.pad_token), save the teacher and build a cache with that"
        )
    # Sentence-transformers sets a module up when it opens a folder. So that the weights need not be written
    # and read for that, it opens a model of the same class and settings that has no layers and few tokens.
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = 0
    config.vocab_size = (config.pad_token_id or 0) + 1
    # Weights that are thrown away are not to use up the caller's random numbers.
    with (
        TemporaryDirectory(prefix="distill-student-") as folder,
        quiet_transformers(),
        torch.random.fork_rng(devices=[]),
    ):
        # A model's own save_pretrained writes in the first of several processes alone.
        config.architectures = [type(model).__name__]
        config.save_pretrained(folder)
        save_file(type(model)(config).state_dict(), Path(folder) / "model.safetensors", {"format": "pt"})
        # Its files would carry the settings of whatever was encoded last.
        plain = copy.deepcopy(tokenizer)
        plain.backend_tokenizer.no_padding()
        plain.backend_tokenizer.no_truncation()
        plain.save_pretrained(folder)
        module = Transformer(
            folder,
            max_seq_length=like.max_seq_length,
            do_lower_case=bool(getattr(like, "do_lower_case", False)),
            model_kwargs={"local_files_only": True},
            processor_kwargs={"local_files_only": True},
            config_kwargs={"local_files_only": True},
        )
    module.model = model
    model.config.name_or_path = ""
    return module
