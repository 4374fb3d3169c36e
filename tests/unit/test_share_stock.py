"""The union of manifests: who lists a file, and what a teacher has."""

from __future__ import annotations

import pytest

from embedcache.share.remote.documents import listed_by
from embedcache.share.remote.manifest import IndexObject, Manifest, SharedFile, Stock

TEACHER, OTHER = "1" * 64, "2" * 64
CARD = "c" * 64


def shard(digit: str, *, teacher: str = TEACHER, index: str = "") -> SharedFile:
    """Return a shard, with a row index whose digest repeats a digit."""
    name = digit * 64
    named = IndexObject(index * 64, 10) if index else None
    return SharedFile(f"teachers/{teacher}/shards/{name}.arrow", name, 100, 5, named)


def codebook(digit: str, teacher: str = TEACHER) -> SharedFile:
    return SharedFile(f"teachers/{teacher}/codebooks/{digit * 64}.npy", digit * 64, 50)


def manifest(*files: SharedFile, by: str = "") -> Manifest:
    ordered = tuple(sorted(files, key=lambda file: file.path))
    return Manifest(ordered, (), (), CARD, by=by, when="2026-01-01T00:00:00Z" if by else "")


def test_each_manifest_that_lists_a_file_is_known_whatever_row_index_it_names() -> None:
    without, one, another = shard("a"), shard("a", index="8"), shard("a", index="9")
    manifests = [
        manifest(without),
        manifest(one, by="Ann"),
        manifest(another, shard("b")),
        manifest(shard("b")),
    ]
    stock = Stock(manifests)
    (united,) = stock.versions(without.path)
    # The two indexes contradict each other, so the file that the stock has is none of those listed.
    assert united.index is None
    for file in (without, one, another, united):
        assert stock.listing(file) == manifests[:3]
        assert listed_by(stock, file) == f"manifest {manifests[1].id[:12]}, pushed by Ann 2026-01-01"
    assert stock.listing(shard("d")) == []


@pytest.mark.parametrize("index", ["", "8"])
def test_a_file_that_got_its_row_index_from_another_manifest_is_listed_by_both(index: str) -> None:
    manifests = [manifest(shard("a", index=index)), manifest(shard("a", index="7" if index else "8"))]
    stock = Stock(manifests)
    assert [stock.listing(file) for file in stock] == [manifests]


def test_shards_and_codebooks_of_a_teacher() -> None:
    mine, theirs = [shard("a"), shard("b")], [shard("c", teacher=OTHER)]
    stock = Stock([manifest(*mine, codebook("d")), manifest(mine[0], *theirs, codebook("e", OTHER))])
    assert stock.shards(TEACHER) == mine
    assert stock.shards(OTHER) == theirs
    assert stock.codebooks(TEACHER) == {"d" * 64: codebook("d")}
    assert stock.codebooks(OTHER) == {"e" * 64: codebook("e", OTHER)}
    assert stock.shards("3" * 64) == []
    assert stock.codebooks("3" * 64) == {}
