"""Token ids of a corpus: equal to the tokenizer's, computed once, recomputed if damaged."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from distill_helpers import TEXTS

from distill.data.tokens import TokenArrays, tokenise_corpus
from embedcache.cache import Cache
from embedcache.errors import CorruptCacheError, StorageError
from embedcache.teacher.tokenize import FastTokenizer

pytest_plugins = ["distill_fixtures"]


@pytest.fixture
def cache(own_cache: Path) -> Cache:
    return Cache(own_cache)


@pytest.fixture
def short(teacher) -> FastTokenizer:
    return FastTokenizer(teacher.model.tokenizer, 12)


def rows_of(tokens: TokenArrays) -> list[list[int]]:
    return [
        tokens.ids[start:end].tolist()
        for start, end in zip(tokens.offsets[:-1], tokens.offsets[1:], strict=True)
    ]


def token_files(cache: Cache) -> list[Path]:
    return sorted((cache.derived_folder / "tokens").rglob("*.bin"))


def test_ids_are_those_of_the_tokenizer_itself_cut_where_it_cuts(cache, teacher, short):
    tokens = tokenise_corpus(cache, cache.corpus(), short)
    expected = [teacher.model.tokenizer(text, truncation=True, max_length=12)["input_ids"] for text in TEXTS]
    whole = [teacher.model.tokenizer(text)["input_ids"] for text in TEXTS]
    assert rows_of(tokens) == expected
    assert expected != whole, "no text was long enough to be cut"
    assert tokens.lengths(np.arange(len(TEXTS))).tolist() == [len(ids) for ids in expected]
    assert tokens.pad_id == teacher.model.tokenizer.pad_token_id


def test_the_second_call_reads_the_files(cache, short, monkeypatch):
    first = tokenise_corpus(cache, cache.corpus(), short)

    def refuse(self, texts):
        raise AssertionError("the tokenizer was called")

    monkeypatch.setattr(FastTokenizer, "__call__", refuse)
    assert rows_of(tokenise_corpus(cache, cache.corpus(), short)) == rows_of(first)


def test_other_settings_have_files_of_their_own(cache, teacher, short):
    cut = tokenise_corpus(cache, cache.corpus(), short)
    longer = tokenise_corpus(cache, cache.corpus(), FastTokenizer(teacher.model.tokenizer, 30))
    prompted = tokenise_corpus(cache, cache.corpus(), FastTokenizer(teacher.model.tokenizer, 12, "the "))
    assert len(token_files(cache)) == 3
    assert longer.offsets[-1] > cut.offsets[-1]
    assert rows_of(prompted) != rows_of(cut)
    assert cut.lengths(np.arange(len(TEXTS))).max() == 12


@pytest.mark.parametrize("name", ["ids.bin", "offsets.npy", "tokens.json"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_damaged_files_are_recomputed_never_used(cache, short, name, damage):
    expected = rows_of(tokenise_corpus(cache, cache.corpus(), short))
    path = token_files(cache)[0].with_name(name)
    if damage == "gone":
        path.unlink()
    elif damage == "flipped":
        data = path.read_bytes()
        path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    else:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2 // 8 * 8])
    assert rows_of(tokenise_corpus(cache, cache.corpus(), short)) == expected
    assert path.exists()


def test_a_cache_that_cannot_be_written_stays_untouched(cache, short, tmp_path, monkeypatch):
    expected = rows_of(tokenise_corpus(cache, cache.corpus(), short))
    for path in token_files(cache):
        path.unlink()
    before = sorted(cache.folder.rglob("*"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(elsewhere))
    monkeypatch.setattr("distill.data.tokens.os.access", lambda path, mode: False)
    assert rows_of(tokenise_corpus(cache, cache.corpus(), short)) == expected
    assert sorted(cache.folder.rglob("*")) == before
    assert len(list(elsewhere.rglob("ids.bin"))) == 1


def test_a_full_disk_is_one_clear_error_and_leaves_nothing_behind(cache, short, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("embedcache.folders.os.fsync", full)
    with pytest.raises(StorageError, match="disk is full"):
        tokenise_corpus(cache, cache.corpus(), short)
    assert list((cache.derived_folder / "tokens").iterdir()) == []


def test_no_ids_are_made_of_a_damaged_text(cache, short):
    (part,) = (cache.corpora_folder / cache.corpus().name).glob("*.arrow")
    data = part.read_bytes()
    place = data.index(TEXTS[5].encode())
    part.write_bytes(data[:place] + b"#" + data[place + 1 :])
    with pytest.raises(CorruptCacheError, match="repair"):
        tokenise_corpus(cache, cache.corpus(), short)
    assert token_files(cache) == []
    part.write_bytes(data)
    assert len(tokenise_corpus(cache, cache.corpus(), short).offsets) == len(TEXTS) + 1
