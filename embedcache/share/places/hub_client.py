"""What the hub's client is used for. It takes long to load, so this module is imported inside functions.

Two of the names are no part of the client's documented interface. Its settings are read from
``huggingface_hub.constants`` where they are used, for they may change.
"""

from __future__ import annotations

from huggingface_hub import get_session, hf_raise_for_status
from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

# The base of all errors of the HTTP library that the client is built on, which has changed before.
from huggingface_hub.errors import HTTPError as ConnectionFailedError  # type: ignore[attr-defined]
from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

__all__ = [
    "ConnectionFailedError",
    "EntryNotFoundError",
    "GatedRepoError",
    "HfHubHTTPError",
    "OfflineModeIsEnabled",
    "RepositoryNotFoundError",
    "RevisionNotFoundError",
    "build_hf_headers",
    "get_session",
    "hf_raise_for_status",
]
