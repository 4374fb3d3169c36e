"""A real server: Infinity with all-MiniLM-L6-v2, whose vectors are those of a local build.

``EMBEDCACHE_INFINITY`` names the command where ``infinity_emb`` is not on the PATH. Infinity pins other
versions of click than this project, so it needs a virtual environment of its own:
``pip install 'infinity-emb[server,torch]' 'click<8.2'``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest
from building import rows_encoded, write_lines
from ports import reserved_port
from safetensors.numpy import load_file, save_file

import embedcache
from embedcache.building.build import grouped
from embedcache.cache import Cache
from embedcache.errors import ContractMismatchError
from embedcache.progress import NoProgress
from embedcache.teacher.resolve import resolve
from embedcache.testing import sentences

COMMAND = os.environ.get("EMBEDCACHE_INFINITY") or shutil.which("infinity_emb")
NAME = "served-minilm"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(COMMAND is None, reason="no infinity_emb: name it with EMBEDCACHE_INFINITY"),
]


@contextmanager
def infinity(model: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
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
            yield run
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


class Starting(NoProgress):
    """Progress that starts a thread once a number of rows is encoded."""

    def __init__(self, rows: int, thread: threading.Thread) -> None:
        self.rows, self.thread, self.is_encoding = rows, thread, False

    def phase(self, name: str, total: int | None = None, unit: str = "rows") -> None:
        self.is_encoding = name == "encode"

    def advance(self, count: int = 1) -> None:
        self.rows -= count if self.is_encoding else 0
        if self.rows < 0 and self.thread.ident is None:
            self.thread.start()


def test_vectors_a_restart_and_another_model(tmp_path: Path) -> None:
    texts = [*sentences(1500), "Ünïcode, 漢字 🙂", "long " * 400]
    source = write_lines(tmp_path / "corpus.txt", texts)
    own = embedcache.build(
        source,
        **grouped(
            {
                "teacher": "minilm-l6",
                "cache": tmp_path / "own",
                "codec": "float32",
                "compute_dtype": "float32",
            }
        ),
    )
    minilm = resolve("minilm-l6").folder
    with reserved_port() as port:
        settings = grouped(
            {
                "teacher": f"openai:{NAME}@http://127.0.0.1:{port}/v1",
                "cache": tmp_path / "served",
                "codec": "float32",
                "shard_rows": 256,
            }
        )
        stop = threading.Event()

        def restart() -> None:
            first.kill()
            first.wait()
            with infinity(minilm, port):
                stop.wait()

        restarting = threading.Thread(target=restart)
        with infinity(minilm, port) as first:
            try:
                served = embedcache.build(source, **{**settings, "progress": Starting(300, restarting)})
            finally:
                stop.set()
        assert restarting.ident is not None
        restarting.join()
        assert rows_encoded(served) == len(texts)
        mine, theirs = own.lookup(texts), served.lookup(texts)
        cosines = (mine * theirs).sum(axis=1) / np.linalg.norm(mine, axis=1) / np.linalg.norm(theirs, axis=1)
        print(f"least cosine {cosines.min():.8f}")  # noqa: T201
        assert cosines.min() > 0.99999
        other = finetuned(minilm, tmp_path / "other")
        more = write_lines(tmp_path / "more.txt", [*texts, *sentences(50, seed=1)])
        with infinity(other, port), pytest.raises(ContractMismatchError, match="cosine") as caught:
            embedcache.build(more, **settings)
        print(caught.value)  # noqa: T201
        assert "canary" in caught.value.differences
        after = Cache(tmp_path / "served")
        assert len(after.store(after.teacher().contract)) == len(texts) + 16
