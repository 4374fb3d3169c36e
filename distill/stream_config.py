"""The keys of a run that begins before all of its vectors are here."""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from distill.strict_config import Positive, PositiveInt, StrictConfig
from embedcache.sizes import parse_size

DEFAULT_WINDOW = 65_536
"""Rows of a window of the first epoch where a build is waited for and nobody says how many."""


class StreamConfig(StrictConfig):
    """What is trained on before all of it is here: a remote's vectors, or those of a build that goes on."""

    mirror: str | None = Field(
        default=None,
        description="folder that keeps what comes from a remote; default: one in the user's cache folder",
    )
    limit: PositiveInt | None = Field(
        default=None,
        description="bytes of a remote's shards that are kept at a time, as in 20GB; rows then come in "
        "windows of half of it; default: all",
    )
    max_bytes: PositiveInt | None = Field(
        default=None,
        description="refuse to fetch more bytes than this of a remote, as in 20GB; with limit, shards do not "
        "count; default: any number",
    )
    require_signature: str | None = Field(
        default=None,
        description="file of a public ed25519 key: of a remote, only what this key has signed is looked at",
    )
    skip_manifests: list[str] | None = Field(
        default=None,
        description="of a remote, manifests whose names begin so, with six digits or more, are left out",
    )
    no_sample_check: bool = Field(
        default=False,
        description="compare no sample of a remote's vectors with the live teacher",
    )
    window: PositiveInt | None = Field(
        default=None,
        description="rows of a window: the first epoch goes over the corpus window by window; default: the "
        f"whole corpus, {DEFAULT_WINDOW} with wait",
    )
    wait: Positive | None = Field(
        default=None,
        description="train while a build goes on, and give up once no vectors came for so many minutes",
    )

    @property
    def of_remote(self) -> list[str]:
        """The keys that are given and are for remotes alone."""
        keys = ("mirror", "limit", "max_bytes", "require_signature", "skip_manifests", "no_sample_check")
        return [f"stream.{key}" for key in keys if getattr(self, key)]

    def filled(self) -> StreamConfig:
        """Return it with the window filled in where a build is waited for."""
        if self.wait is None or self.window is not None:
            return self
        return self.model_copy(update={"window": DEFAULT_WINDOW})

    @field_validator("limit", "max_bytes", mode="before")
    @classmethod
    def _read_size(cls, size: object, about: ValidationInfo) -> object:
        if not isinstance(size, str):
            return size
        try:
            return parse_size(size)
        except ValueError as error:
            option = "--cache-limit" if about.field_name == "limit" else "--max-bytes"
            raise ValueError(f"{error}, as in {option} 20GB") from None
