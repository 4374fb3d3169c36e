from __future__ import annotations

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from distill.students import embedding_block
from distill.students.embedding_block import EmbeddingBlock, narrow_block

TOKENS, POSITIONS, WIDTH = 300, 20, 12


def block(rank: int = WIDTH, seed: int = 0) -> EmbeddingBlock:
    torch.manual_seed(seed)
    basis = torch.randn(rank, WIDTH)
    return EmbeddingBlock(
        word=torch.randn(TOKENS, rank) @ basis + torch.randn(WIDTH),
        position=torch.randn(POSITIONS, rank) @ basis * 0.1,
        type=torch.zeros(2, WIDTH),
        norm_weight=torch.rand(WIDTH) + 0.5,
        norm_bias=torch.randn(WIDTH),
        eps=1e-12,
    )


def test_directions_are_those_of_a_truncated_svd_of_the_centred_table():
    teacher = block()
    small, _ = narrow_block(teacher, 5)
    centred = (teacher.word - teacher.word.mean(dim=0)).double()
    left, values, _ = torch.linalg.svd(centred, full_matrices=False)
    expected = left[:, :5] * values[:5]
    signs = (expected * small.word).sum(dim=0).sign()
    torch.testing.assert_close(small.word.double(), expected * signs, atol=1e-4, rtol=0)
    # Positions lie in the same basis.
    basis = torch.linalg.lstsq(centred, small.word.double()).solution
    torch.testing.assert_close(small.position.double(), teacher.position.double() @ basis, atol=1e-4, rtol=0)


def test_the_map_is_the_best_there_is_and_its_share_is_told():
    teacher = block()
    small, explained = narrow_block(teacher, 6)
    ids = torch.arange(TOKENS).repeat(POSITIONS)
    positions = torch.arange(POSITIONS).repeat_interleave(TOKENS)
    wanted, found = teacher.output(ids, positions), small.output(ids, positions)
    assert found.shape == wanted.shape == (TOKENS * POSITIONS, WIDTH)

    def share(values: torch.Tensor) -> float:
        return float(1 - (values - wanted).square().sum() / (wanted - wanted.mean(dim=0)).square().sum())

    # It is fitted on a few positions of each token, and judged here on all of them.
    assert share(found) == pytest.approx(explained, abs=0.02)
    assert 0.3 < explained < 0.95
    torch.manual_seed(1)
    for _ in range(5):
        assert share(found + 0.05 * torch.randn(WIDTH)) < share(found)


def test_wider_explains_more_and_narrower_less():
    shares = [narrow_block(block(), width)[1] for width in (2, 5, 8, 11)]
    assert shares == sorted(shares)
    assert shares[0] < 0.5 < shares[-1]


def test_the_linear_map_behind_a_teachers_own_block_is_aimed_at():
    teacher = block()
    projected = EmbeddingBlock(**{**vars(teacher), "project": (torch.randn(30, WIDTH), torch.randn(30))})
    small, explained = narrow_block(projected, 8)
    assert small.project is not None
    assert small.project[0].shape == (30, 8)
    assert 0.3 < explained < 1


def test_the_same_block_gives_the_same_bytes_whatever_the_random_state():
    first, _ = narrow_block(block(), 5)
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    second, _ = narrow_block(block(), 5)
    torch.manual_seed(99)
    assert torch.equal(before, torch.random.get_rng_state())
    other, _ = narrow_block(block(seed=1), 5)
    assert torch.equal(first.word, second.word)
    assert first.project is not None
    assert second.project is not None
    assert torch.equal(first.project[0], second.project[0])
    assert not torch.equal(first.word, other.word)
    assert first.word.dtype == first.project[0].dtype == torch.float32


def test_signs_do_not_depend_on_the_order_of_tokens():
    teacher = block()
    flipped = EmbeddingBlock(**{**vars(teacher), "word": teacher.word.flip(0)})
    a, _ = narrow_block(teacher, 4)
    b, _ = narrow_block(flipped, 4)
    torch.testing.assert_close(a.word, b.word.flip(0), atol=1e-4, rtol=0)


def counts_of() -> torch.Tensor:
    """Few tokens that come often, many that hardly ever do, as in texts."""
    return (100_000 / torch.arange(1, TOKENS + 1) ** 2).long()


def share_over(counts: torch.Tensor, small: EmbeddingBlock, teacher: EmbeddingBlock) -> float:
    """R2 over tokens that come as often as their counts say, each at every position, summed up exactly."""
    ids = torch.arange(TOKENS).repeat(POSITIONS)
    positions = torch.arange(POSITIONS).repeat_interleave(TOKENS)
    weight = (counts.double() / counts.sum()).repeat(POSITIONS)[:, None] / POSITIONS
    wanted, found = teacher.output(ids, positions), small.output(ids, positions)
    mean = (weight * wanted).sum(dim=0)
    error = (weight * (found - wanted).square()).sum()
    return float(1 - error / (weight * (wanted - mean).square()).sum())


@pytest.mark.parametrize("width", [3, 6])
def test_counts_serve_the_tokens_that_texts_are_made_of(width):
    teacher, counts = block(), counts_of()
    alike, counted = narrow_block(teacher, width), narrow_block(teacher, width, counts)
    even = torch.ones(TOKENS, dtype=torch.int64)
    assert share_over(counts, counted[0], teacher) > share_over(counts, alike[0], teacher) + 0.02
    # What is won there is lost where tokens hardly ever come.
    assert share_over(even, counted[0], teacher) < share_over(even, alike[0], teacher) - 0.02
    # Each is told the share over the tokens that it is for.
    assert counted[1] == pytest.approx(share_over(counts, counted[0], teacher), abs=0.02)
    assert alike[1] == pytest.approx(share_over(even, alike[0], teacher), abs=0.02)
    assert counted[1] > share_over(even, counted[0], teacher) + 0.05


def test_directions_are_those_of_the_texts_and_so_is_the_map():
    teacher, counts = block(), counts_of()
    shares = (counts.double() + 1) / (counts.double() + 1).sum()
    small, _ = narrow_block(teacher, 4, counts)
    centred = teacher.word.double() - shares @ teacher.word.double()
    basis = torch.linalg.svd(shares.sqrt()[:, None] * centred)[2][:4].T
    expected = centred @ basis
    signs = (expected * small.word).sum(dim=0).sign()
    torch.testing.assert_close(small.word.double(), expected * signs, atol=1e-4, rtol=0)
    ids, positions = torch.arange(TOKENS), torch.zeros(TOKENS, dtype=torch.int64)
    inputs = torch.cat([small.normalised(ids, positions), torch.ones(TOKENS, 1).double()], dim=1)
    even = torch.linalg.lstsq(inputs, teacher.output(ids, positions), driver="gelsd").solution
    # Behind the same directions, the best map for tokens that count alike serves the texts less.
    other = EmbeddingBlock(**{**vars(small), "project": (even[:-1].T.float(), even[-1].float())})
    assert share_over(counts, other, teacher) < share_over(counts, small, teacher) - 0.02


def test_counts_decide_the_bytes_and_no_counts_are_counts_that_are_alike():
    teacher, counts = block(), counts_of()
    none, alike, zero, first, again, turned = (
        narrow_block(teacher, 4, given)[0]
        for given in (
            None,
            torch.full((TOKENS,), 7),
            torch.zeros(TOKENS, dtype=torch.int64),
            counts,
            counts.clone(),
            counts.flip(0),
        )
    )
    for other in (alike, zero):
        torch.testing.assert_close(other.word, none.word)
        torch.testing.assert_close(other.project, none.project, atol=1e-4, rtol=1e-4)
    for name in ("word", "position", "type"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert first.project is not None
    assert again.project is not None
    assert all(torch.equal(one, other) for one, other in zip(first.project, again.project, strict=True))
    for other in (none, turned):
        assert not torch.allclose(first.word, other.word, atol=1e-3)


def test_it_computes_on_one_thread_and_gives_the_others_back(monkeypatch):
    seen: list[list[int]] = []

    def threads() -> list[int]:
        return [torch.get_num_threads(), *(one["num_threads"] for one in threadpool_info())]

    samples = embedding_block._samples

    def watched(shares: torch.Tensor, positions: int):
        seen.append(threads())
        return samples(shares, positions)

    monkeypatch.setattr(embedding_block, "_samples", watched)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with threadpool_limits(2):
            outside = threads()
            narrow_block(block(), 4)
            assert threads() == outside
            with pytest.raises(RuntimeError):
                narrow_block(block(), 4, torch.ones(3))
            assert threads() == outside
    finally:
        torch.set_num_threads(before)
    assert outside[0] == 2
    assert len(seen) == 1
    assert set(seen[0]) == {1}
