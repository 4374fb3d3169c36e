"""Remotes that tests of many processes run on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from remote_servers import BUCKET, s3_environment, s3_server


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.slow)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[str, Path]]:
    """Yield the beginning of a remote's URL, and the folder that it lies in."""
    if request.param == "folder":
        yield str(tmp_path / "remotes"), tmp_path / "remotes"
        return
    with s3_server(tmp_path / "buckets") as port:
        for name, value in s3_environment(port).items():
            monkeypatch.setenv(name, value)
        yield f"s3://{BUCKET}", tmp_path / "buckets" / BUCKET
