"""Whatever changes a vector changes the contract: every value of every file of a model, one at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from teacher_folders import adapter, bidirectional, decoder, own_code, router

from embedcache.teacher.load import load_teacher
from embedcache.testing import encode_texts, sentences, tiny_encoder

TEXTS = [*sentences(6), "the Cat </s> SEES", "the bird " * 40]
_GONE = object()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Path, str, Any]]:
    """Return teachers' folders, the ids of their contracts, and their vectors of ``TEXTS``."""
    at = tmp_path_factory.mktemp("teachers")
    made = [tiny_encoder(at / "encoder"), decoder(at / "decoder"), bidirectional(at / "bidirectional")]
    made += [adapter(at / "adapter", made[1]), own_code(at / "code"), router(at / "router")]
    teachers = [load_teacher(folder, device="cpu", trust_remote_code=True) for folder in made]
    return [(one.folder, one.contract.id, encode_texts(one, TEXTS)) for one in teachers]


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


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("examples", [40, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_changed_value_that_changes_vectors_changes_the_contract(
    folders: list[tuple[Path, str, Any]], tmp_path: Path, examples: int
) -> None:
    @settings(max_examples=examples)
    @given(data=st.data(), kind=st.integers(0, len(folders) - 1))
    def check(data: st.DataObject, kind: int) -> None:
        (folder, contract, usual), scratch = folders[kind], tmp_path / "changed"
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(folder, scratch)
        files = sorted(path.relative_to(folder) for path in folder.rglob("*.json"))
        file = data.draw(st.sampled_from(files))
        content = json.loads((folder / file).read_text())
        path, value = data.draw(st.sampled_from(list(leaves(content))))
        other = data.draw(st.sampled_from(others_of(value)))
        (scratch / file).write_text(json.dumps(changed(content, path, other)))
        try:
            after = load_teacher(scratch, device="cpu", trust_remote_code=True)
            vectors = encode_texts(after, TEXTS)
        except BaseException as error:
            # Refused, or a model that computes nothing; Rust has errors of its own.
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            return
        if vectors.shape != usual.shape or not np.allclose(vectors, usual, atol=1e-5):
            assert after.contract.id != contract, (file, path, value, other)

    check()
