"""Peak of a build's anonymous memory beside the weights of its teacher, on Linux.

python benchmarks/teacher_memory.py FOLDER --compute-dtype bfloat16
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

# Freed memory goes back at once; glibc reads this when the process starts.
if "MALLOC_MMAP_THRESHOLD_" not in os.environ:
    os.execve(  # noqa: S606 - itself
        sys.executable, [sys.executable, *sys.argv], {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    )

import torch
from safetensors.torch import load_file

from embedcache.building.build import build
from embedcache.teacher.options import EncodeOptions
from embedcache.testing import sentences, tiny_encoder


def anonymous_bytes() -> int:
    """Return the memory of this process that no file stands behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    """Build twice, and print the peak of the second."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--compute-dtype", default="float32")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    encode = EncodeOptions(compute_dtype=given.compute_dtype, threads=given.threads)
    most, ended = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not ended.wait(0.002):
            most = max(most, anonymous_bytes())

    with TemporaryDirectory() as scratch:
        # Libraries need memory of their own.
        first = tiny_encoder(Path(scratch, "first"))
        build(sentences(20), teacher=first, cache=Path(scratch, "a"), name="x", encode=encode)
        before, thread = anonymous_bytes(), threading.Thread(target=watch)
        thread.start()
        build(sentences(20), teacher=given.folder, cache=Path(scratch, "b"), name="x", encode=encode)
        ended.set()
        thread.join()
    size = torch.finfo(getattr(torch, given.compute_dtype)).bits // 8
    parameters = sum(tensor.numel() for tensor in load_file(given.folder / "model.safetensors").values())
    weights = parameters * size
    print(json.dumps({"weights": weights, "peak": most - before, "ratio": (most - before) / weights}))


if __name__ == "__main__":
    main()
