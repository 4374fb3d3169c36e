"""Keyword arguments of trainings, for editors; written by ``docs/generate_keywords.py``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from typing_extensions import TypedDict


class RunKeywords(TypedDict, total=False):
    """Settings of ``RunConfig``."""

    teacher_weight: list[float] | None
    target_dim: int | None
    teacher_model: str | Path | None
    overwrite: bool
    seed: int
    head: Literal["auto", "linear", "tanh", "none"]
    drop_head: bool
    pooling: Literal["mean", "cls", "cls-before-pooler", "pooler", "last"] | None
    max_length: int | None
    dropout: float
    lr: float | None
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    schedule: Literal["cosine", "linear", "constant"]
    warmup: float
    max_grad_norm: float
    epochs: int | None
    max_steps: int | None
    batch_size: int | None
    order: Literal["bucketed", "random"]
    mixed_precision: Literal["auto", "no", "bf16", "fp16"]
    device: str
    threads: int | None
    checkpoint_every: int | None
    limit: int | None
    view: str | list[str] | None
    where: str | None
    mirror: str | Path | None
    cache_limit: str | int | None
    require_signature: str | Path | None
    eval_every: int | None
    patience: int | None
    patience_epochs: float | None
    dev: str | Path | None
    dev_rows: str | list[str] | None
    held_out: int | None
    dev_text: str | None
    dev_text2: str | None
    dev_label: str | None
    log_every: int
    log_with: list[Literal["tensorboard", "wandb", "trackio"]]
    optimizer: Mapping[str, Any]
    training: Mapping[str, Any]
    stream: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    tracking: Mapping[str, Any]


class FinetuneKeywords(TypedDict, total=False):
    """Settings of ``FinetuneConfig``."""

    column: str | list[str] | None
    text: str | None
    text2: str | None
    label: str
    rows: str | list[str] | None
    format: str | None
    overwrite: bool
    seed: int
    pooling: Literal["mean", "cls", "cls-before-pooler", "pooler", "last"] | None
    head: Literal["none", "linear", "tanh"]
    drop_head: bool
    layers: str | None
    max_length: int | None
    dropout: float
    tau: float
    duplicates: Literal["leave-out", "keep"]
    lr: float | None
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    schedule: Literal["cosine", "linear", "constant"]
    warmup: float
    max_grad_norm: float
    epochs: int | None
    max_steps: int | None
    batch_size: int | None
    order: Literal["bucketed", "random"]
    mixed_precision: Literal["auto", "no", "bf16", "fp16"]
    device: str
    threads: int | None
    checkpoint_every: int | None
    limit: int | None
    eval_every: int | None
    patience: int | None
    patience_epochs: float | None
    dev: str | Path | None
    dev_rows: str | list[str] | None
    held_out: float | None
    log_every: int
    log_with: list[Literal["tensorboard", "wandb", "trackio"]]
    student: Mapping[str, Any]
    loss: Mapping[str, Any]
    optimizer: Mapping[str, Any]
    training: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    tracking: Mapping[str, Any]
