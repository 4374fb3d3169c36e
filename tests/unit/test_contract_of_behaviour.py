"""Whatever changes a vector changes the contract: every value of every file of a model, one at a time."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from teacher_folders import bidirectional, decoder

from embedcache.errors import EmbedCacheError
from embedcache.teacher.load import load_teacher
from embedcache.testing import encode_texts, sentences, tiny_encoder

TEXTS = [*sentences(6), "the Cat </s> SEES", "the bird " * 40]
_GONE = object()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    at = tmp_path_factory.mktemp("teachers")
    return [tiny_encoder(at / "encoder"), decoder(at / "decoder"), bidirectional(at / "bidirectional")]


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the places of a JSON value, of long lists and vocabularies the first few."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items)[:30]:
        yield (*path, key), inner
        yield from leaves(inner, (*path, key))


def others_of(value: Any) -> list[Any]:
    """Return other values in place of one."""
    if isinstance(value, bool):
        return [not value, _GONE]
    if isinstance(value, (int, float)):
        return [value + 1, 0, _GONE]
    if isinstance(value, str):
        return [f"{value}x", "", {"left": "right", "right": "left"}.get(value.lower(), " "), _GONE]
    return [True, "a", 1, _GONE] if value is None else [_GONE]


def changed(content: Any, path: tuple[Any, ...], other: Any) -> Any:
    content = json.loads(json.dumps(content))
    inner = content
    for key in path[:-1]:
        inner = inner[key]
    if other is _GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = other
    return content


def check(folder: Path, scratch: Path, draw: Any) -> None:
    shutil.rmtree(scratch, ignore_errors=True)
    shutil.copytree(folder, scratch)
    file = draw(st.sampled_from(sorted(path.relative_to(folder) for path in folder.rglob("*.json"))))
    content = json.loads((folder / file).read_text())
    path, value = draw(st.sampled_from(list(leaves(content))))
    (scratch / file).write_text(json.dumps(changed(content, path, draw(st.sampled_from(others_of(value))))))
    before = load_teacher(folder, device="cpu")
    try:
        after = load_teacher(scratch, device="cpu")
    except EmbedCacheError:
        return
    try:
        vectors = encode_texts(after, TEXTS)
    except (ValueError, RuntimeError, LookupError, AttributeError):
        return  # which computes nothing
    usual = encode_texts(before, TEXTS)
    if vectors.shape != usual.shape or not np.allclose(vectors, usual, atol=1e-5):
        assert after.contract.id != before.contract.id, (file, path, value)


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@settings(max_examples=30)
@given(data=st.data(), kind=st.integers(0, 2))
def test_a_changed_value_that_changes_vectors_changes_the_contract(
    folders: list[Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: int
) -> None:
    check(folders[kind], tmp_path_factory.getbasetemp() / "changed", data.draw)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=1500)
@given(data=st.data(), kind=st.integers(0, 2))
def test_any_changed_value_that_changes_vectors_changes_the_contract(
    folders: list[Path], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: int
) -> None:
    check(folders[kind], tmp_path_factory.getbasetemp() / "changed", data.draw)


MEMORY = Path(__file__).parents[2] / "benchmarks" / "teacher_memory.py"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_build_has_one_copy_of_the_weights(tmp_path: Path, dtype: str) -> None:
    folder = decoder(tmp_path / "large", layers=16, width=768)
    command = [sys.executable, "-W", "ignore", str(MEMORY), str(folder), "--compute-dtype", dtype]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["weights"] > 1e8
    assert found["ratio"] <= 1.25
