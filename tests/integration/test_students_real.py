"""Students of real teachers: the same bytes on any number of threads, and real tokenizers pruned."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, ElectraConfig

from distill.students.vocabulary import prune_vocabulary
from embedcache.teacher.load import quiet_transformers
from embedcache.teacher.tokenize import FastTokenizer
from embedcache.testing import sentences

pytestmark = pytest.mark.integration

MODELS = Path(os.environ.get("DISTILL_MODELS", Path.home() / ".cache" / "real-models"))
CORPUS = [*sentences(200, seed=5), "Unhappily, the runners' re-running of it was unstoppable."]
OTHERS = ["Žluťoučký naïve café", "Incomprehensibilities of quantum chromodynamics", "漢字", "", "🙂"]
MAKE = """
import sys
import numpy as np
import torch
from threadpoolctl import threadpool_info
from distill.students.build import build_student
from distill.students.spec import StudentOptions
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


def model(name: str) -> Path:
    if not (MODELS / name).is_dir():
        pytest.skip(f"no {name} in {MODELS}: name another folder by DISTILL_MODELS")
    return MODELS / name


def made_on(threads: int, folder: Path) -> dict[str, str]:
    """Make students in a process with ``threads`` threads and return the digests of their files."""
    counts = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    specs = ["compact:e=96,layers=1", "static:dim=96,vocab=6000"]
    ended = subprocess.run(
        [sys.executable, "-c", MAKE, str(model("minilm-l6")), str(folder), *specs],
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


@pytest.mark.slow
@pytest.mark.skipif((os.cpu_count() or 1) < 2, reason="needs two cores")
def test_threads_do_not_change_a_students_bytes(tmp_path: Path) -> None:
    one, two = (made_on(threads, tmp_path / str(threads)) for threads in (1, 2))
    assert one == two
    assert {file.partition("/")[0] for file in one if file.endswith("model.safetensors")} == {"0", "1"}


def rows(tokenizer, texts: list[str]) -> list[list[int]]:
    found = FastTokenizer(tokenizer, 0)(texts)
    return [found.ids[a:b].tolist() for a, b in zip(found.offsets, found.offsets[1:], strict=False)]


@pytest.mark.parametrize(("name", "size"), [("minilm-l6", 700), ("minilm-l6", 20000), ("mpnet", 4000)])
def test_a_real_tokenizer_reads_texts_of_kept_tokens_as_before(name: str, size: int, tmp_path: Path) -> None:
    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(model(name))
    fast, notes = FastTokenizer(tokenizer, 0), list[str]()
    counts = np.bincount(fast(CORPUS).ids, minlength=fast.vocabulary_size)
    pruned, kept = prune_vocabulary(tokenizer, counts, size, notes.append)
    assert "100.00%" in notes[0]
    assert {"[unused5]", "[unused500]"}.isdisjoint(pruned.get_vocab())
    texts, left = [*CORPUS, *OTHERS], set(kept.tolist())
    same = 0
    for old, new in zip(rows(tokenizer, texts), rows(pruned, texts), strict=True):
        assert max(new) < size
        assert (kept[new].tolist() == old) is left.issuperset(old)
        same += left.issuperset(old)
    assert same >= len(CORPUS)
    pruned.save_pretrained(tmp_path)
    ElectraConfig(vocab_size=size).save_pretrained(tmp_path)
    with quiet_transformers():
        assert rows(AutoTokenizer.from_pretrained(tmp_path), texts) == rows(pruned, texts)
