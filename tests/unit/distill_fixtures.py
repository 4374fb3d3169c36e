"""A tiny teacher and a cache of its vectors: shared by the tests of training."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from distill_helpers import HELD_OUT, TEXTS, build, open_dataset

from distill.data.dataset import DistillDataset
from embedcache.cache import Cache
from embedcache.teacher.load import Teacher, load_teacher
from embedcache.teacher.tokenize import FastTokenizer, fast_tokenizer
from embedcache.testing import tiny_encoder


@pytest.fixture(scope="session")
def teacher_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sentence-transformers folder: four layers, width 16, vectors of length one."""
    return tiny_encoder(tmp_path_factory.mktemp("teacher") / "tiny", layers=4)


@pytest.fixture(scope="session")
def teacher(teacher_folder: Path) -> Teacher:
    """The loaded teacher; not to be changed."""
    return load_teacher(teacher_folder, device="cpu")


@pytest.fixture(scope="session")
def built_cache(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path) -> Path:
    """A cache of ``TEXTS``; not to be changed, but for its derived files."""
    folder = tmp_path_factory.mktemp("cache")
    corpus = folder / "texts.txt"
    corpus.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    build(corpus, teacher_folder, folder / "cache")
    return folder / "cache"


@pytest.fixture(scope="session")
def second_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another teacher: two layers, width 8, vectors of other lengths than one."""
    return tiny_encoder(
        tmp_path_factory.mktemp("teacher") / "other", layers=2, dimension=8, normalize=False, seed=5
    )


@pytest.fixture(scope="session")
def two_teachers(tmp_path_factory: pytest.TempPathFactory, teacher_folder: Path, second_folder: Path) -> Path:
    """A cache of ``TEXTS`` with vectors of ``tiny`` and of ``other``, in shards of other sizes."""
    folder = tmp_path_factory.mktemp("two")
    corpus = folder / "texts.txt"
    corpus.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    build(corpus, teacher_folder, folder / "cache")
    build(corpus, second_folder, folder / "cache", shard_rows=31)
    return folder / "cache"


@pytest.fixture
def own_cache(built_cache: Path, tmp_path: Path) -> Path:
    """A copy of the cache that a test may change, without derived token arrays."""
    folder = tmp_path / "own-cache"
    shutil.copytree(built_cache, folder)
    shutil.rmtree(folder / "derived" / "tokens", ignore_errors=True)
    return folder


@pytest.fixture
def dataset(built_cache: Path) -> DistillDataset:
    return open_dataset(Cache(built_cache), held_out=HELD_OUT)


@pytest.fixture(scope="session")
def tokenizer(teacher: Teacher) -> FastTokenizer:
    found = fast_tokenizer(teacher.model, 64, "")
    assert found is not None
    return found
