from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from distill_helpers import TEXTS, build

from distill.data import loader as loader_module
from distill.data.dataset import open_dataset
from distill.data.loader import Loader
from distill.data.sampler import epoch_batches
from distill.data.source import DistillSource, Share
from distill.data.tokens import RowLengths, tokenise_corpus
from embedcache.errors import RemoteError

pytest_plugins = ["distill_fixtures"]


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "loader"]


@pytest.fixture(scope="module", params=["float16", "float32"])
def joined(request, tmp_path_factory, teacher_folder, tokenizer):
    """A cache of many small shards, a dataset over it, and its tokens."""
    folder = tmp_path_factory.mktemp("loader")
    rows = TEXTS[:90] + TEXTS[:15]
    (folder / "rows.txt").write_text("\n".join(rows) + "\n", encoding="utf-8")
    cache = build(folder / "rows.txt", teacher_folder, folder / "cache", shard_rows=7, codec=request.param)
    dataset = open_dataset(cache, held_out=12)
    assert len(dataset.targets.stores[0].shards) > 10
    return cache, dataset, tokenise_corpus(cache, dataset.corpus, tokenizer)


@pytest.fixture
def small_groups(monkeypatch):
    monkeypatch.setattr(loader_module, "_ROWS_AT_ONCE", 16)


def some_batches(dataset, tokens, epoch: int = 0) -> list[np.ndarray]:
    return list(epoch_batches(RowLengths(tokens, dataset.rows), 9, seed=5, epoch=epoch))


@pytest.mark.parametrize("gather_rows", [1, 16, 10_000])
def test_every_row_comes_with_its_own_vector_and_its_own_ids(joined, teacher, monkeypatch, gather_rows):
    monkeypatch.setattr(loader_module, "_ROWS_AT_ONCE", gather_rows)
    cache, dataset, tokens = joined
    seen = 0
    for batch in Loader(DistillSource(dataset, (tokens,)), some_batches(dataset, tokens)):
        for i, text in enumerate(dataset.corpus.texts(batch.rows)):
            expected = torch.from_numpy(cache.lookup([text])[0])
            assert torch.equal(batch.targets[i].float(), expected)
            ids = teacher.model.tokenizer(text)["input_ids"]
            assert batch.input_ids[i, : len(ids)].tolist() == ids
            assert (batch.input_ids[i, len(ids) :] == tokens.pad_id).all()
            assert batch.attention_mask[i].tolist() == [1] * len(ids) + [0] * (
                batch.input_ids.shape[1] - len(ids)
            )
            seen += 1
        assert batch.attention_mask.sum(dim=1).max() == batch.input_ids.shape[1], (
            "padded beyond the longest row"
        )
    assert seen == len(dataset) == 78
    vectors = cache.lookup(dataset.corpus.texts(dataset.rows))
    assert len(np.unique(vectors, axis=0)) == len(vectors), "vectors are alike, so a mix-up would go unseen"


@pytest.mark.usefixtures("small_groups")
def test_batches_come_in_the_order_given(joined):
    _, dataset, tokens = joined
    for epoch in range(2):
        batches = some_batches(dataset, tokens, epoch)
        loader = Loader(DistillSource(dataset, (tokens,)), batches)
        assert len(loader) == len(batches)
        got = [batch.rows.tolist() for batch in loader]
        assert got == [dataset.rows[batch].tolist() for batch in batches]
        assert loader.waited > 0


@pytest.mark.usefixtures("small_groups")
def test_an_error_while_preparing_is_raised_where_batches_are_used(joined):
    _, dataset, tokens = joined
    positions = dataset.targets.positions[0].astype(np.int64)
    positions[-1] = -1
    broken = replace(dataset, targets=replace(dataset.targets, positions=(positions,)))
    batches = [np.arange(20), np.arange(20, 40), np.array([len(dataset) - 1])]
    seen = []
    with pytest.raises(IndexError, match="missing key"):
        seen.extend(batch.rows for batch in Loader(DistillSource(broken, (tokens,)), batches))
    assert not loader_threads()


@pytest.mark.usefixtures("small_groups")
def test_leaving_early_leaves_no_thread(joined):
    _, dataset, tokens = joined
    batches = some_batches(dataset, tokens) * 20
    for _ in Loader(DistillSource(dataset, (tokens,)), batches):
        assert loader_threads()
        break
    assert not loader_threads()


def test_a_loader_may_start_in_the_middle(joined):
    _, dataset, tokens = joined
    source = DistillSource(dataset, (tokens,))
    batches = some_batches(dataset, tokens)
    whole = list(Loader(source, batches))
    for start in (0, 1, len(batches) - 1, len(batches)):
        loader = Loader(source, batches, start=start)
        rest = list(loader)
        assert len(loader) == len(rest) == len(batches) - start
        for got, expected in zip(rest, whole[start:], strict=True):
            assert torch.equal(got.input_ids, expected.input_ids)
            assert torch.equal(got.targets, expected.targets)


@pytest.mark.parametrize("processes", [2, 4])
def test_processes_share_the_texts_of_a_step_and_know_all_of_its_targets(joined, processes):
    _, dataset, tokens = joined
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


def test_of_many_views_the_last_place_goes_round(joined):
    _, dataset, tokens = joined
    # Views that can be told apart: all tokens of view v are 100 + v.
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


def test_batches_are_prepared_apart_at_breaks(joined):
    """Those of one window must not wait for the data of the next."""
    _, dataset, tokens = joined
    groups = []

    class Watched(DistillSource):
        def prepare(self, batches, epoch, share):
            groups.append(len(batches))
            return super().prepare(batches, epoch, share)

    batches = some_batches(dataset, tokens)
    found = list(Loader(Watched(dataset, (tokens,)), batches, breaks={2, 5}))
    assert groups == [2, 3, len(batches) - 5]
    plain = list(Loader(DistillSource(dataset, (tokens,)), batches))
    assert all(torch.equal(one.rows, other.rows) for one, other in zip(found, plain, strict=True))


def test_rows_up_to_the_next_break_are_checked_before_one_of_them_is_yielded(joined):
    _, dataset, tokens = joined
    batches, trained, checked = some_batches(dataset, tokens), [], []

    def check(rows):
        assert threading.current_thread() is threading.main_thread()
        assert np.concatenate(trained or [[]]).tolist() == np.concatenate(checked or [[]]).tolist()
        checked.append(dataset.rows[rows])

    source = DistillSource(dataset, (tokens,))
    loader = Loader(source, batches, breaks={2, 5}, start=1, check=check)
    trained.extend(batch.rows.numpy() for batch in loader)
    assert [len(rows) for rows in checked] == [
        sum(map(len, batches[part])) for part in (slice(1, 2), slice(2, 5), slice(5, None))
    ]


@pytest.mark.parametrize("error", [RemoteError("other vectors"), ZeroDivisionError()])
def test_an_error_of_the_check_is_raised_before_its_rows_are_yielded(joined, error):
    _, dataset, tokens = joined
    checked, trained, told = [], [], []

    def check(rows):
        checked.append(rows)
        if len(checked) == 2:
            raise error

    batches = some_batches(dataset, tokens)
    loader = Loader(DistillSource(dataset, (tokens,)), batches, breaks={2}, check=check, agree=told.append)
    with pytest.raises(type(error)):
        trained.extend(loader)
    assert len(trained) == 2
    # Other processes are told of what a remote has caused.
    assert told == [None, *([error] if isinstance(error, RemoteError) else [])]
    assert not loader_threads()


def test_whoever_waits_for_data_is_interrupted_where_nobody_wants_it_any_more(joined):
    _, dataset, tokens = joined
    came, waits = threading.Event(), threading.Event()

    class Endless(DistillSource):
        def prepare(self, batches, epoch, share):
            if waits.is_set():
                assert came.wait(60)
                raise RuntimeError("interrupted")
            waits.set()
            return super().prepare(batches, epoch, share)

        def interrupt(self):
            came.set()

    batches = Loader(Endless(dataset, (tokens,)), some_batches(dataset, tokens), breaks={1})
    for _ in batches:
        break
    assert came.is_set()
    # One that comes to its end interrupts nobody.
    came.clear()
    waits.clear()
    list(Loader(Endless(dataset, (tokens,)), some_batches(dataset, tokens)[:1]))
    assert not came.is_set()
