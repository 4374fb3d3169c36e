"""Manifests are read in little memory, whatever they are; those that others replace are found."""

from __future__ import annotations

import hashlib
import itertools
import random
import threading
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from share_helpers import TEXTS, claims_on, make_cache

from embedcache.cache import Cache
from embedcache.share import push
from embedcache.share.places import parse_location
from embedcache.share.places.base import Stat
from embedcache.share.places.folder import FolderPlace
from embedcache.share.remote import manifest_reader
from embedcache.share.remote import superseded as superseded_module
from embedcache.share.remote.manifest import IndexObject, Manifest, SharedFile, Stock, TeacherLine
from embedcache.share.remote.ranges import ranges_of
from embedcache.share.remote.remote import Remote
from embedcache.share.remote.shared_file import KnownFiles
from embedcache.share.remote.superseded import superseded

TEACHER = "aa" * 32
MIB = 1 << 20


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def shard(number: int) -> SharedFile:
    digest = digest_of(str(number))
    index = IndexObject(digest_of(f"index {number}"), 3000)
    return SharedFile(f"teachers/{TEACHER}/shards/{digest}.arrow", digest, 5000, 10, index)


SHARDS = sorted(map(shard, range(400)), key=lambda file: file.path)


def manifest_with(
    numbers: Sequence[int],
    licences: Sequence[str] = (),
    when: str = "",
    news: Sequence[int] | None = None,
) -> Manifest:
    teachers = tuple(TeacherLine(digest_of(text), (), 0, "", text) for text in licences)
    files = tuple(SHARDS[number] for number in sorted(numbers))
    ranges = None if news is None else ranges_of(news)
    return Manifest(files, teachers, (), digest_of("card"), "Ann" if when else "", when, news=ranges)


@contextmanager
def memory_at_most(size: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def bomb(begin: str, piece: str, end: str) -> bytes:
    return (begin + piece * (8 * MIB // len(piece)) + end).encode()


HEAD, TAIL = '{"card":"x","corpora":[],"files":[', '],"teachers":[],"version":1}'


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (bomb('{"version":1,"files":[', "[],", "[]]}"), "bytes beside its files"),
        (bomb(HEAD, "{},", "{}" + TAIL), "lists .* files, expected 1 to 250,000"),
        (bomb(HEAD + "{", '"a":[],', '"b":1}' + TAIL), "bytes beside its files"),
        (bomb(HEAD + '{"a":0', ',"b":1', "}" + TAIL), "a file is described in .* bytes"),
        (bomb('{"card":"x","corpora":[', "[],", '[]],"files":[],"teachers":[],"version":1}'), "beside"),
        (bomb('{"card":"x","corpora":[],"files":[],"teachers":[', "{},", '{}],"version":1}'), "beside"),
        (bomb("[", "[],", "[]]"), "bytes beside its files"),
        (bomb("[", "1,", "1]"), "bytes beside its files"),
    ],
)
def test_what_cannot_be_a_manifest_is_not_parsed(data: bytes, told: str) -> None:
    with memory_at_most(4 * len(data)), pytest.raises(ValueError, match=told):
        Manifest.from_bytes(data, hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("data", [bomb("[", "[],", "[]]"), bomb('["', '","', '"]'), bomb("[", "1,", "1]")])
def test_what_is_no_claim_is_not_parsed(data: bytes, tmp_path: Path) -> None:
    mine = claims_on(tmp_path)
    name = "ab" * 6 + "-1-" + "cd" * 6 + ".1.json"
    mine.remote.write(f"claims/{name}", data)
    with memory_at_most(4 * len(data)):
        assert mine._read(name) is None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_claim_is_read_as_it_was_written(count: int, tmp_path: Path) -> None:
    digests = {digest_of(str(number)) for number in range(count)}
    mine = claims_on(tmp_path)
    data = b"[%b]" % b",".join(b'"%b"' % digest.encode() for digest in sorted(digests))
    name = "ab" * 6 + "-1-" + "cd" * 6 + ".1.json"
    mine.remote.write(f"claims/{name}", data)
    assert mine._read(name) == digests
    mine.remote.write(f"claims/{name}", data.replace(b"[", b"[ "))
    assert mine._read(name) is None


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = manifest_with(range(50), ["MIT"], "2026-01-02T03:04:05Z", [0, 1, 7, 48, 49])
    same = Manifest.from_bytes(manifest.data, manifest.id)
    assert (same, same.id, same.data) == (manifest, manifest.id, manifest.data)


def test_files_of_the_same_bytes_are_held_once() -> None:
    known = KnownFiles()
    manifests = [manifest_with([*range(100), 100 + number]) for number in range(20)]
    first, *others = [Manifest.from_bytes(each.data, each.id, known) for each in manifests]
    for other in others:
        assert all(file is same for file, same in zip(first.files[:100], other.files[:100], strict=True))
    assert [other.files for other in (first, *others)] == [manifest.files for manifest in manifests]
    assert len(list(Stock([first, *others]))) == 120


def put(folder: Path, manifests: Sequence[Manifest]) -> Remote:
    remote = Remote(parse_location(str(folder)))
    remote.prepare()
    for manifest in manifests:
        remote.write(f"manifests/{manifest.id}.json", manifest.data)
    return remote


def test_memory_of_many_pushes_does_not_grow_with_their_files(tmp_path: Path) -> None:
    manifests = [manifest_with(list({*range(300), number}), [str(number)]) for number in range(40)]
    remote = put(tmp_path, manifests)
    tracemalloc.start()
    survey = remote.survey()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A file takes about a kilobyte, and there are 12,000 in all these lists.
    assert held < 12_000 * 250
    assert {manifest.id for manifest in survey.manifests} == {manifest.id for manifest in manifests}


@pytest.mark.parametrize("tells_sizes", [True, False])
def test_large_manifests_are_held_one_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tells_sizes: bool
) -> None:
    monkeypatch.setattr(manifest_reader, "_LARGE_BYTES", 10)
    listed = FolderPlace.list
    if not tells_sizes:
        monkeypatch.setattr(
            FolderPlace, "list", lambda self, folder: dict.fromkeys(listed(self, folder), Stat(None))
        )
    manifests = [manifest_with([number, number + 1]) for number in range(20)]
    put(tmp_path, manifests)
    at_once, most_at_once, lock = 0, 0, threading.Lock()
    read = Remote.read

    def counted(self: Remote, path: str, most: int) -> bytes | None:
        nonlocal at_once, most_at_once
        if most == 10:
            assert not tells_sizes, "what is known to be large is begun twice"
            return read(self, path, most)
        with lock:
            at_once += 1
            most_at_once = max(at_once, most_at_once)
        try:
            return read(self, path, most)
        finally:
            with lock:
                at_once -= 1

    monkeypatch.setattr(Remote, "read", counted)
    survey = Remote(parse_location(str(tmp_path))).survey()
    assert (len(survey.manifests), dict(survey.refused), most_at_once) == (20, {}, 1)


@pytest.mark.parametrize("large", [10, 1 << 20])
def test_copies_of_manifests_are_read_instead(
    large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(make_cache(tmp_path / "cache", TEXTS[:20]).folder)
    push(cache, str(tmp_path / "remote"))
    location = parse_location(str(tmp_path / "remote"))
    before = Remote(location).survey(cache)
    monkeypatch.setattr(manifest_reader, "_LARGE_BYTES", large)
    monkeypatch.setattr(Remote, "read", lambda *_: pytest.fail("the manifest was fetched"))
    assert Remote(location).survey(cache) == before


def plainly_superseded(
    manifests: Sequence[Manifest], keys: dict[str, frozenset[bytes] | None]
) -> dict[str, str]:
    """Return what :func:`superseded` should, by its definition alone."""

    def stands_for(other: Manifest, manifest: Manifest) -> bool:
        licences, more = (
            {(one.contract, one.licence) for one in each.teachers} for each in (manifest, other)
        )
        mine, theirs = keys[manifest.id], keys[other.id]
        if mine is None or (mine and (theirs is None or not mine <= theirs)):
            return False
        news = set() if other.news is None else set(other.new_files)
        return set(manifest.files) <= set(other.files) - news and licences <= more

    kept: list[Manifest] = []
    replaced = {}
    for manifest in sorted(manifests, key=lambda each: (len(each.files), each.when, each.id), reverse=True):
        instead = next((other for other in kept if stands_for(other, manifest)), None)
        if instead is None:
            kept.append(manifest)
        else:
            replaced[manifest.id] = instead.id
    return replaced


def test_a_manifest_is_replaced_by_what_lists_and_says_as_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = Remote(parse_location(str(tmp_path)))
    replaced = 0
    for seed in range(60):
        rng = random.Random(seed)  # noqa: S311 - no secret
        made = [
            manifest_with(
                rng.sample(range(8), count),
                rng.sample(["MIT", "CC0"], rng.choice([0, 0, 1, 2])),
                rng.choice(["", "2026-01-02T03:04:05Z", "2026-01-03T03:04:05Z"]),
                rng.choice([None, sorted(rng.sample(range(count), rng.randint(0, count // 2)))]),
            )
            for count in (rng.randint(1, 8) for _ in range(25))
        ]
        manifests = list({manifest.id: manifest for manifest in made}.values())
        signers = [frozenset[bytes](), frozenset[bytes](), frozenset([b"a"]), frozenset([b"a", b"b"]), None]
        keys = {manifest.id: rng.choice(signers) for manifest in manifests}
        monkeypatch.setattr(superseded_module, "_keys", lambda _, manifest, keys=keys: keys[manifest.id])
        expected = plainly_superseded(manifests, keys)
        assert superseded(remote, manifests) == expected
        replaced += len(expected)
    assert replaced > 100


def test_manifests_that_cannot_replace_each_other_are_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = [manifest_with([*range(50), 50 + number]) for number in range(300)]
    compared = itertools.count()
    stands_for = superseded_module._stands_for
    monkeypatch.setattr(
        superseded_module, "_stands_for", lambda *each: (next(compared), stands_for(*each))[1]
    )
    remote = Remote(parse_location(str(tmp_path)))
    assert superseded(remote, manifests) == {}
    assert next(compared) == 0
