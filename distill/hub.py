"""Upload of a model folder to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from distill.errors import ExportError
from embedcache.errors import first_line


def push_to_hub(folder: str | Path, repository: str, *, public: bool = False) -> str:
    """Upload a model folder with its card to a model repository, in one commit, and return its URL.

    The repository then holds this folder and nothing else: a graph of an earlier student would not fit.

    Args:
        folder: sentence-transformers folder, such as ``best/`` of a run or an export.
        repository: ``OWNER/NAME``; created if it is missing.
        public: make a new repository public; an existing one stays as it is.

    Raises:
        ExportError: if ``folder`` is not a model, or the hub refuses the upload or cannot be reached.
    """
    from httpx import HTTPError
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not (Path(folder) / "modules.json").is_file():
        raise ExportError(f"{folder} has no modules.json; expected a sentence-transformers folder")
    api = HfApi()
    try:
        if not api.repo_exists(repository):
            api.create_repo(repository, private=not public, exist_ok=True)
        api.upload_folder(
            repo_id=repository, folder_path=str(folder), delete_patterns="*", commit_message="distill export"
        )
    except (HfHubHTTPError, HFValidationError, HTTPError, OSError) as error:
        reason = first_line(error)
        raise ExportError(
            f"cannot push to {repository!r} ({reason}): expected OWNER/NAME, and a token that may write "
            "there in HF_TOKEN or by 'hf auth login'"
        ) from error
    return f"{api.endpoint}/{repository}"
