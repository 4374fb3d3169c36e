"""A real server: Infinity with all-MiniLM-L6-v2, whose vectors are those of a local build.

``EMBEDCACHE_INFINITY`` names the command where ``infinity_emb`` is not on the PATH. Infinity pins other
versions of click than this project, so it needs a separate virtual environment:
``pip install 'infinity-emb[server,torch]' 'click<8.2'``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import write_lines
from ports import reserved_port
from safetensors.numpy import load_file, save_file

import embedcache
from embedcache.building.build import grouped
from embedcache.cache import Cache
from embedcache.errors import ContractMismatchError
from embedcache.teacher.resolve import resolve
from embedcache.testing import sentences

COMMAND = os.environ.get("EMBEDCACHE_INFINITY") or shutil.which("infinity_emb")
NAME = "served-minilm"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(COMMAND is None, reason="no infinity_emb: name it with EMBEDCACHE_INFINITY"),
]


@contextmanager
def infinity(model: Path, port: int) -> Iterator[None]:
    """Serve ``model`` under the one name until the block ends."""
    command = [str(COMMAND), "v2", "--model-id", str(model), "--served-model-name", NAME, "--port", str(port)]
    command += ["--engine", "torch", "--device", "cpu", "--url-prefix", "/v1", "--no-bettertransformer"]
    environment = {**os.environ, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
    quiet = subprocess.DEVNULL
    with subprocess.Popen(
        [*command, "--host", "127.0.0.1"], env=environment, stdout=quiet, stderr=quiet
    ) as run:
        try:
            deadline = time.monotonic() + 240
            while True:
                with (
                    suppress(OSError),
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=1),
                ):
                    break
                assert run.poll() is None, f"infinity_emb ended with {run.returncode}"
                assert time.monotonic() < deadline
                time.sleep(0.2)
            yield
        finally:
            run.kill()


def finetuned(model: Path, folder: Path) -> Path:
    """Copy a model with slightly other weights, and return the copy's folder."""
    shutil.copytree(model, folder)
    weights, generator = load_file(folder / "model.safetensors"), np.random.default_rng(0)
    for tensor in weights.values():
        if tensor.dtype == np.float32 and tensor.ndim == 2:
            tensor += 0.01 * generator.standard_normal(tensor.shape, dtype=np.float32)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def settings_of(teacher: str, cache: Path, **more: Any) -> dict[str, Any]:
    return grouped({"teacher": teacher, "cache": cache, "codec": "float32", **more})


def test_vectors_are_those_of_a_local_build_and_another_model_is_refused(tmp_path: Path) -> None:
    texts = [*sentences(200), "Ünïcode, 漢字 🙂", "long " * 400]
    source, minilm = write_lines(tmp_path / "corpus.txt", texts), resolve("minilm-l6").folder
    own = embedcache.build(source, **settings_of("minilm-l6", tmp_path / "own", compute_dtype="float32"))
    with reserved_port() as port:
        settings = settings_of(f"openai:{NAME}@http://127.0.0.1:{port}/v1", tmp_path / "served")
        with infinity(minilm, port):
            served = embedcache.build(source, **settings)
        mine, theirs = own.lookup(texts), served.lookup(texts)
        cosines = (mine * theirs).sum(axis=1) / np.linalg.norm(mine, axis=1) / np.linalg.norm(theirs, axis=1)
        assert cosines.min() > 0.99999
        more = write_lines(tmp_path / "more.txt", [*texts, *sentences(50, seed=1)])
        other = finetuned(minilm, tmp_path / "other")
        with infinity(other, port), pytest.raises(ContractMismatchError, match="cosine") as caught:
            embedcache.build(more, **settings)
    assert "canary" in caught.value.differences
    after = Cache(tmp_path / "served")
    assert len(after.store(after.teacher().contract)) == len(texts) + 16
