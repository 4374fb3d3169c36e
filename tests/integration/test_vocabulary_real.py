"""Real tokenizers, pruned: texts of kept tokens stay as they are, and the folder opens again."""

from __future__ import annotations

import os
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


def rows(tokenizer, texts: list[str]) -> list[list[int]]:
    found = FastTokenizer(tokenizer, 0)(texts)
    return [found.ids[a:b].tolist() for a, b in zip(found.offsets, found.offsets[1:], strict=False)]


@pytest.mark.parametrize("size", [700, 4000, 20000])
@pytest.mark.parametrize("name", ["minilm-l6", "mpnet"])
def test_a_real_tokenizer(name: str, size: int, tmp_path: Path) -> None:
    if not (MODELS / name).is_dir():
        pytest.skip(f"no {name} in {MODELS}: name another folder by DISTILL_MODELS")
    with quiet_transformers():
        tokenizer = AutoTokenizer.from_pretrained(MODELS / name)
    fast = FastTokenizer(tokenizer, 0)
    counts = np.bincount(fast(CORPUS).ids, minlength=fast.vocabulary_size)
    pruned = prune_vocabulary(tokenizer, counts, size)
    assert pruned.share == 1
    assert {"[unused5]", "[unused500]"}.isdisjoint(pruned.tokenizer.get_vocab())
    texts, left = [*CORPUS, *OTHERS], set(pruned.kept.tolist())
    same = 0
    for old, new in zip(rows(tokenizer, texts), rows(pruned.tokenizer, texts), strict=True):
        assert max(new) < size
        assert (pruned.kept[new].tolist() == old) is left.issuperset(old)
        same += left.issuperset(old)
    assert same >= len(CORPUS)
    pruned.tokenizer.save_pretrained(tmp_path)
    ElectraConfig(vocab_size=size).save_pretrained(tmp_path)
    with quiet_transformers():
        assert rows(AutoTokenizer.from_pretrained(tmp_path), texts) == rows(pruned.tokenizer, texts)
