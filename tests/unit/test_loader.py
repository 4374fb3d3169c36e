"""The loader: every row with its own vector and ids, in the order given."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from distill_helpers import TEXTS, build, open_dataset

from distill.data import loader as loader_module
from distill.data.loader import Loader
from distill.data.sampler import epoch_batches
from distill.data.source import DistillSource, Share
from distill.data.tokens import RowLengths, tokenise_corpus

pytest_plugins = ["distill_fixtures"]


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "loader"]


@pytest.fixture(scope="module", params=["float16", "float32"])
def joined(request, tmp_path_factory, teacher_folder, tokenizer):
    """A cache of many small shards, a dataset over it, its tokens, and the batches of an epoch."""
    folder = tmp_path_factory.mktemp("loader")
    (folder / "rows.txt").write_text("\n".join(TEXTS[:90] + TEXTS[:15]) + "\n", encoding="utf-8")
    cache = build(folder / "rows.txt", teacher_folder, folder / "cache", shard_rows=7, codec=request.param)
    dataset = open_dataset(cache, held_out=12)
    tokens = tokenise_corpus(cache, dataset.corpus, tokenizer)
    batches = list(epoch_batches(RowLengths(tokens, dataset.rows), 9, seed=5, epoch=0))
    return cache, dataset, tokens, batches


@pytest.mark.parametrize("rows_at_once", [1, 16, 10_000])
def test_every_row_comes_in_order_with_its_own_vector_and_its_own_ids(
    joined, teacher, monkeypatch, rows_at_once
):
    monkeypatch.setattr(loader_module, "_ROWS_AT_ONCE", rows_at_once)
    cache, dataset, tokens, batches = joined
    loader = Loader(DistillSource(dataset, (tokens,)), batches)
    found = list(loader)
    assert [batch.rows.tolist() for batch in found] == [dataset.rows[batch].tolist() for batch in batches]
    for batch in found:
        texts = dataset.corpus.texts(batch.rows)
        np.testing.assert_array_equal(batch.targets.float(), cache.lookup(texts))
        for i, text in enumerate(texts):
            ids = teacher.model.tokenizer(text)["input_ids"]
            padding = batch.input_ids.shape[1] - len(ids)
            assert batch.input_ids[i].tolist() == ids + [tokens.pad_id] * padding
            assert batch.attention_mask[i].tolist() == [1] * len(ids) + [0] * padding
        assert batch.attention_mask.sum(dim=1).max() == batch.input_ids.shape[1], "padded beyond the longest"
    assert loader.waited > 0
    vectors = cache.lookup(dataset.corpus.texts(dataset.rows))
    assert len(np.unique(vectors, axis=0)) == len(vectors) == 78, "a mix-up would go unseen"


def test_an_error_is_raised_where_batches_are_used_and_no_thread_stays(joined, monkeypatch):
    monkeypatch.setattr(loader_module, "_ROWS_AT_ONCE", 16)
    _, dataset, tokens, batches = joined
    positions = dataset.targets.positions[0].astype(np.int64)
    positions[-1] = -1
    broken = replace(dataset, targets=replace(dataset.targets, positions=(positions,)))
    with pytest.raises(IndexError):
        list(Loader(DistillSource(broken, (tokens,)), [np.arange(20), np.array([len(dataset) - 1])]))
    assert not loader_threads()
    for _ in Loader(DistillSource(dataset, (tokens,)), batches * 20):
        assert loader_threads()
        break
    assert not loader_threads()


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_the_texts_of_a_step_and_know_all_of_its_targets(joined, processes):
    _, dataset, tokens, _ = joined
    source = DistillSource(dataset, (tokens, tokens), texts=2)
    batches = [np.arange(9), np.arange(9, 16), np.arange(3), np.array([5])]
    whole = list(Loader(source, batches))
    parts = [list(Loader(source, batches, share=Share(i, processes))) for i in range(processes)]
    for expected, *own in zip(whole, *parts, strict=True):
        assert sum(part.counted for part in own) == len(expected)
        for part in own:
            assert torch.equal(part.rows, expected.rows)
            assert torch.equal(part.targets, expected.targets)
            assert len(part) >= 1
            for view in range(2):
                mine = slice(view * len(part), view * len(part) + part.counted)
                first = view * len(expected) + part.offset
                theirs = expected.input_ids[first : first + part.counted]
                width = part.input_ids.shape[1]
                assert torch.equal(part.input_ids[mine], theirs[:, :width])
                assert (theirs[:, width:] == tokens.pad_id).all(), "cut off"


@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_shares_are_all_of_a_step_in_order_and_everybody_has_a_row(processes):
    for rows in range(1, 12):
        own = [Share(process, processes).of(rows) for process in range(processes)]
        counted = [list(range(part.start, part.start + count)) for part, count in own]
        assert [row for part in counted for row in part] == list(range(rows))
        assert all(part.stop - part.start >= 1 for part, _ in own)
        sizes = [count for _, count in own]
        assert max(sizes) - min(sizes) <= 1


def test_of_many_views_the_last_place_goes_round(joined):
    _, dataset, tokens, _ = joined
    # Distinguishable views: all tokens of view v are 100 + v.
    views = tuple(replace(tokens, ids=np.full_like(np.asarray(tokens.ids), 100 + v)) for v in range(4))
    source = DistillSource(dataset, views, texts=2)
    seen = []
    for epoch in range(3):
        (batch,) = Loader(source, [np.arange(20)], epoch=epoch)
        first, second = batch.input_ids[:, 0].chunk(2)
        assert (first == 100).all()
        seen.append(second.numpy())
    assert all(sorted(of_row) == [101, 102, 103] for of_row in np.stack(seen, axis=1))
    assert len(set(seen[0])) == 3, "one epoch has all views in it"
