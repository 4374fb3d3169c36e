"""Encoders of several architectures, with their weights in the form of ELECTRA's layers.

ELECTRA (Clark et al., 2020) has the layers of BERT behind an embedding block that may be narrower than they
are, so a compact student is a plain ``ElectraModel``. RoBERTa's and XLM-R's layers are the same as well;
DistilBERT's and MPNet's have other names, and MPNet's have a bias by relative position that has no place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from distill.errors import StudentError
from distill.students.embedding_block import EmbeddingBlock

if TYPE_CHECKING:
    from transformers import ElectraConfig, PreTrainedConfig


@dataclass(frozen=True)
class Architecture:
    """Differences of an architecture from BERT.

    Attributes:
        layers: prefix of its layers' weights.
        renamed: ELECTRA's name of a module of a layer -> its own, where they differ.
        config: ELECTRA's name of a setting -> its own, where they differ.
        after_padding: positions are counted from the one after the padding token's id.
        lost: part of its layers that an ElectraModel has no place for.
    """

    layers: str = "encoder.layer."
    renamed: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, str] = field(default_factory=dict)
    after_padding: bool = False
    lost: str = ""


_ATTENTION = ("self.query", "self.key", "self.value", "output.dense", "output.LayerNorm")
_LAYER = (
    *(f"attention.{name}" for name in _ATTENTION),
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)
"""The modules of an ELECTRA layer; each has a weight and a bias."""

_ROBERTA = Architecture(after_padding=True)
_MPNET = ("attn.q", "attn.k", "attn.v", "attn.o", "LayerNorm")
_DISTILBERT = (
    *("attention.q_lin", "attention.k_lin", "attention.v_lin", "attention.out_lin", "sa_layer_norm"),
    *("ffn.lin1", "ffn.lin2", "output_layer_norm"),
)

_KNOWN = {
    "bert": Architecture(),
    "electra": Architecture(),
    "roberta": _ROBERTA,
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "mpnet": Architecture(
        renamed=dict(zip(_LAYER, (f"attention.{name}" for name in _MPNET), strict=False)),
        after_padding=True,
        lost="the bias of its attention by relative position",
    ),
    "distilbert": Architecture(
        layers="transformer.layer.",
        renamed=dict(zip(_LAYER, _DISTILBERT, strict=True)),
        config={
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
            "hidden_dropout_prob": "dropout",
            "attention_probs_dropout_prob": "attention_dropout",
        },
    ),
}

_SETTINGS = (
    *("vocab_size", "hidden_size", "num_attention_heads", "intermediate_size", "hidden_act"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "initializer_range"),
)
_SILENT = 1e-30
"""Smallest total weight of a layer's neurons that shares are taken of."""

_DISTILBERT_EPS = 1e-12
"""DistilBERT has it in its code, not in its configuration."""


def architecture_of(config: Any) -> Architecture:
    """Return the architecture of a model.

    Raises:
        StudentError: if it is not known.
    """
    if config.model_type not in _KNOWN:
        raise StudentError(
            f"a compact student cannot copy the layers of a {config.model_type!r} teacher "
            f"(known: {', '.join(_KNOWN)}); use layers:K, or a teacher of a known architecture"
        )
    return _KNOWN[config.model_type]


def text_positions(config: PreTrainedConfig) -> int | None:
    """Return the number of tokens a model has positions for; None where its configuration has none.

    Unknown architectures are assumed to reserve no positions.
    """
    stated: int | None = getattr(config, "max_position_embeddings", None)
    return None if stated is None else stated - _first(config)


def _first(config: Any) -> int:
    """Return the row of a model's position table for the first token of a text."""
    known = _KNOWN.get(config.model_type, _KNOWN["bert"])
    return int(config.pad_token_id) + 1 if known.after_padding else 0


def electra_config(config: PreTrainedConfig, width: int, layers: int) -> ElectraConfig:
    """Return the configuration of a compact student.

    Args:
        config: the teacher's.
        width: e, of the token embeddings.
        layers: number of the teacher's layers that it keeps.

    Raises:
        StudentError: if the teacher's architecture is not known.
    """
    from transformers import ElectraConfig

    known = architecture_of(config)
    values = {name: getattr(config, known.config.get(name, name), None) for name in _SETTINGS}
    values["layer_norm_eps"] = values["layer_norm_eps"] or _DISTILBERT_EPS
    return ElectraConfig(
        **values,
        embedding_size=width,
        num_hidden_layers=layers,
        max_position_embeddings=text_positions(config),
        type_vocab_size=getattr(config, "type_vocab_size", None) or 1,
        pad_token_id=config.pad_token_id,
    )


def read_block(model: Any) -> EmbeddingBlock:
    """Return the embedding block of a transformers model of a known architecture, float32, read-only."""
    inner = model.embeddings
    word = _read(inner.word_embeddings.weight)
    types = getattr(inner, "token_type_embeddings", None)
    project = getattr(model, "embeddings_project", None)
    return EmbeddingBlock(
        word=word,
        position=_read(inner.position_embeddings.weight)[_first(model.config) :],
        type=torch.zeros(1, word.shape[1]) if types is None else _read(types.weight),
        norm_weight=_read(inner.LayerNorm.weight),
        norm_bias=_read(inner.LayerNorm.bias),
        eps=float(inner.LayerNorm.eps),
        project=None if project is None else (_read(project.weight), _read(project.bias)),
    )


def read_layers(model: Any, chosen: list[int]) -> dict[str, Tensor]:
    """Return the weights of the ``chosen`` layers under the names of ``ElectraModel``, float32."""
    known = architecture_of(model.config)
    weights = model.state_dict()
    return {
        f"encoder.layer.{place}.{name}.{part}": _read(
            weights[f"{known.layers}{number}.{known.renamed.get(name, name)}.{part}"]
        )
        for place, number in enumerate(chosen)
        for name in _LAYER
        for part in ("weight", "bias")
    }


def narrow_layers(layers: Mapping[str, Tensor], neurons: int) -> tuple[dict[str, Tensor], float]:
    """Return layers with the ``neurons`` heaviest neurons of each feed-forward part.

    A neuron adds its activation times a vector to the layer's output, so its weight is the product of the
    lengths of its input and output weights.

    Args:
        layers: weights as of ``read_layers``, of layers with at least ``neurons``.

    Returns:
        The layers under the same names, and the kept share of the neurons' total weight, 0 to 1, mean over
        the layers.
    """
    narrow = dict(layers)
    shares: list[float] = []
    for name, reading in layers.items():
        if name.endswith(".intermediate.dense.weight"):
            layer = name.removesuffix("intermediate.dense.weight")
            bias, writing = f"{layer}intermediate.dense.bias", f"{layer}output.dense.weight"
            size = reading.norm(dim=1) * layers[writing].norm(dim=0)
            kept = size.argsort(descending=True, stable=True)[:neurons].sort().values
            shares.append(float(size[kept].sum() / size.sum().clamp(min=_SILENT)))
            narrow[name], narrow[bias] = reading[kept], layers[bias][kept]
            narrow[writing] = layers[writing][:, kept].contiguous()
    return narrow, sum(shares) / len(shares)


def block_weights(block: EmbeddingBlock) -> dict[str, Tensor]:
    """Return the weights of an embedding block under the names that ``ElectraModel`` gives them."""
    weights = {
        "embeddings.word_embeddings.weight": block.word,
        "embeddings.position_embeddings.weight": block.position,
        "embeddings.token_type_embeddings.weight": block.type,
        "embeddings.LayerNorm.weight": block.norm_weight,
        "embeddings.LayerNorm.bias": block.norm_bias,
    }
    if block.project is not None:
        weights["embeddings_project.weight"], weights["embeddings_project.bias"] = block.project
    return weights


def _read(weight: Tensor) -> Tensor:
    return weight.detach().float()
