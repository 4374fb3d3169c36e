"""A student has the same bytes whatever the number of threads it is made on."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.integration

MODELS = Path(os.environ.get("DISTILL_MODELS", Path.home() / ".cache" / "real-models"))
MAKE = """
import sys
import numpy as np
import torch
from threadpoolctl import threadpool_info
from distill.students.build import build_student
from distill.students.registry import StudentOptions
from embedcache.teacher.load import load_teacher
from embedcache.testing import sentences

_, model, out, *specs = sys.argv
teacher = load_teacher(model, device="cpu")
texts = sentences(2000, seed=6)

def count(tokenizer):
    return np.bincount(tokenizer(texts).ids, minlength=tokenizer.vocabulary_size)

for number, spec in enumerate(specs):
    student = build_student(spec, teacher.contract, lambda: teacher, StudentOptions(count_tokens=count))
    student.save_pretrained(f"{out}/{number}", create_model_card=False)
print(torch.get_num_threads(), *{one["num_threads"] for one in threadpool_info()})
"""


def made_on(threads: int, specs: list[str], folder: Path) -> dict[str, str]:
    """Make students in a process of so many threads and return the digests of their files."""
    counts = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    ended = subprocess.run(
        [sys.executable, "-c", MAKE, str(MODELS / "minilm-l6"), str(folder), *specs],
        env={**os.environ, **counts},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    # Afterwards there are as many threads as before.
    assert ended.stdout.split()[-2:] == [str(threads)] * 2
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def test_threads_do_not_change_a_students_bytes(tmp_path: Path) -> None:
    if not (MODELS / "minilm-l6").is_dir():
        pytest.skip(f"no minilm-l6 in {MODELS}: name another folder by DISTILL_MODELS")
    if (os.cpu_count() or 1) < 2:
        pytest.skip("needs two cores")
    specs = ["compact:e=96,layers=1", "static:dim=96,vocab=6000"]
    one, two = (made_on(threads, specs, tmp_path / str(threads)) for threads in (1, 2))
    assert one == two
    assert {file.partition("/")[0] for file in one if file.endswith("model.safetensors")} == {"0", "1"}
