from __future__ import annotations

import pytest
import torch

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
