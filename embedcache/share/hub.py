"""Dataset repositories of the Hugging Face Hub as remotes: every write is a commit, so files are bundled."""

from __future__ import annotations

import re
import threading
from typing import Any

from embedcache.errors import InputError

CARD = "README.md"
"""File that the hub shows as a repository's card."""
_MOST_FILES = 500
"""Files of one commit; the hub refuses commits of very many."""


class DatasetRepository:
    """Writes files to a dataset repository of the hub, many to a commit. Threads may share it.

    Args:
        url: ``hf://datasets/OWNER/NAME``, maybe with a folder.

    Raises:
        InputError: if the URL names no dataset repository.
    """

    def __init__(self, url: str) -> None:
        from huggingface_hub import HfApi

        found = re.fullmatch(r"hf://datasets/([^/]+/[^/]+)(?:/.*)?", url)
        if found is None:
            raise InputError(f"{url}: expected hf://datasets/OWNER/NAME; the hub is written to nowhere else.")
        self.id = found[1]
        self._api = HfApi()
        self._lock = threading.Lock()
        self._pending: list[Any] = []

    def create(self) -> None:
        """Make the repository, private, if there is none."""
        # Asked first: a token that may write to the repository need not be allowed to make one.
        if not self._api.repo_exists(self.id, repo_type="dataset"):
            self._api.create_repo(self.id, repo_type="dataset", private=True, exist_ok=True)

    def add(self, place: str, data: bytes) -> None:
        """Upload a file that the next commit shows; ``place`` begins with ``datasets/OWNER/NAME/``."""
        from huggingface_hub import CommitOperationAdd

        operation = CommitOperationAdd(place.removeprefix(f"datasets/{self.id}/"), data)
        # Large files leave memory here.
        self._api.preupload_lfs_files(self.id, [operation], repo_type="dataset")
        with self._lock:
            self._pending.append(operation)
            if len(self._pending) >= _MOST_FILES:
                self._commit()

    def commit(self) -> None:
        """Commit the files added since the last commit; nothing if there are none."""
        with self._lock:
            self._commit()

    def _commit(self) -> None:
        files, self._pending = self._pending, []
        if files:
            self._api.create_commit(self.id, files, commit_message="embedcache push", repo_type="dataset")
