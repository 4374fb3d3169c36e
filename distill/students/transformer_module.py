"""A transformers model as the first module of a sentence-transformers model."""

from __future__ import annotations

import copy
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import torch

from embedcache.teacher.load import quiet_transformers

if TYPE_CHECKING:
    from sentence_transformers.base.modules import Transformer
    from transformers import PreTrainedModel


def as_module(model: PreTrainedModel, tokenizer: Any, like: Any) -> Transformer:
    """Return ``model`` and ``tokenizer`` as a module, set up as it will be when it is opened from a folder.

    Args:
        model: a model with its weights; it is not copied.
        tokenizer: its transformers tokenizer; it is copied.
        like: the teacher's first module, whose way of cutting texts is taken over.
    """
    from sentence_transformers.base.modules import Transformer

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
        type(model)(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        module = Transformer(
            folder,
            max_seq_length=like.max_seq_length,
            do_lower_case=bool(getattr(like, "do_lower_case", False)),
            model_kwargs={"local_files_only": True},
            processor_kwargs={"local_files_only": True},
            config_kwargs={"local_files_only": True},
        )
    # The tokenizer's file would carry the settings of whatever was encoded last.
    module.tokenizer.backend_tokenizer.no_padding()
    module.tokenizer.backend_tokenizer.no_truncation()
    module.model = model
    model.config.name_or_path = ""
    return module
