"""The union of manifests: who lists a file, and what a teacher has."""

from __future__ import annotations

from pathlib import Path

import pytest
from share_helpers import TEXTS, make_cache

from embedcache.cache import Cache
from embedcache.share import compare_with_remote, difference, preview_pull, push
from embedcache.share.remote.documents import listed_by
from embedcache.share.remote.manifest import IndexObject, Manifest, SharedFile, Stock
from embedcache.testing import fake_teacher

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


def test_the_files_of_a_teacher_and_of_a_corpus_are_those_that_lie_there() -> None:
    mine, theirs = shard("a"), shard("c", teacher=OTHER)
    texts = [SharedFile(f"corpora/{name}/{'5' * 64}.arrow", "5" * 64, 10, 1) for name in ("news", "news2")]
    view = SharedFile("corpora/news/views/short/corpus.json", "6" * 64, 10)
    stock = Stock([manifest(mine, theirs, *texts), manifest(view)])
    assert stock.of_teacher(TEACHER) == [mine]
    assert stock.of_teacher(OTHER) == [theirs]
    assert stock.of_corpus("news") == [texts[0], view]
    assert stock.of_corpus("news2") == [texts[1]]
    assert stock.of_corpus("none") == stock.of_teacher("3" * 64) == []
    assert stock.corpus_names == ("news", "news2")
    assert stock.teacher_names == {TEACHER: frozenset(), OTHER: frozenset()}


def test_the_files_of_a_remote_are_not_gone_through_for_each_corpus_and_teacher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[Stock] = []
    units: list[SharedFile] = []
    go_through, unit = Stock.__iter__, difference._unit
    monkeypatch.setattr(Stock, "__iter__", lambda stock: passes.append(stock) or go_through(stock))
    monkeypatch.setattr(difference, "_unit", lambda file: units.append(file) or unit(file))
    counts = []
    for number in range(3):
        cache, remote = tmp_path / "cache", str(tmp_path / f"remote{number}")
        teacher = fake_teacher(8, seed=number)
        make_cache(cache, TEXTS[number : number + 5], name=f"corpus{number}", teacher=teacher)
        for taught in Cache(cache).teachers():
            (cache / "teachers" / taught.contract.id / "names" / f"{taught.name}.json").rename(
                cache / "teachers" / taught.contract.id / "names" / f"t{taught.contract.id[:6]}.json"
            )
        push(cache, remote)
        passes.clear()
        units.clear()
        found = preview_pull(tmp_path / "there", remote)
        assert compare_with_remote(cache, remote).is_same
        # Each file is sorted into its teacher or corpus once on either side.
        assert len(units) == 2 * found.files
        counts.append(len(passes))
    assert counts == counts[:1] * 3
