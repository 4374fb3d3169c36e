"""A run on a mirror deletes nothing that builds, pulls and earlier runs still need, and nothing else's."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from share_helpers import TEXTS, make_cache

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.keys import key_array
from embedcache.share import push
from embedcache.share.mirror.mirror import Mirror
from embedcache.share.temporaries import arriving
from embedcache.testing import FakeEncoder, fake_teacher


def _largest_shard(cache: Cache) -> int:
    return max(shard.bytes for shard in cache.store(cache.teachers()[0].contract).shards)


def test_a_build_in_a_mirror_keeps_the_shards_it_counts_on(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "ann", TEXTS)
    push(cache, str(tmp_path / "team"))
    encoder = FakeEncoder(fake_teacher(8))
    limit = 2 * _largest_shard(cache)
    with Mirror.open(str(tmp_path / "team"), tmp_path / "mirror", limit=limit) as mirror:
        contract = mirror.cache.teachers()[0].contract
        store = mirror.store(contract)
        store.opened(np.array([0]))
        store.opened(np.array([1]))
        here = mirror.cache.store(contract)
        texts = [text for text in TEXTS if (here.locate(key_array([text])) >= 0).all()]
        corpus = tmp_path / "own.txt"
        corpus.write_text("\n".join(texts) + "\n", encoding="utf-8")
        build(corpus, teacher=encoder.teacher, encoder=encoder, cache=tmp_path / "mirror", name="mine")
        # Nothing of it had to be encoded, and nothing of it goes as the run goes on.
        assert len(texts) > 0
        assert encoder.rows_encoded == 0
        for number in range(2, 5):
            store.opened(np.array([number]))
    assert (Cache(tmp_path / "mirror").store(contract).locate(key_array(texts)) >= 0).all()


def test_shards_of_pushes_that_are_left_out_now_make_room(tmp_path: Path) -> None:
    remote = str(tmp_path / "team")
    mine = make_cache(tmp_path / "ann", TEXTS[:120])
    others = make_cache(tmp_path / "bob", TEXTS[120:], name="other")
    push(mine, remote)
    left_out = push(others, remote).manifest
    contract = mine.teachers()[0].contract
    theirs = {shard.name for shard in others.store(contract).shards}
    limit = 2 * max(_largest_shard(mine), _largest_shard(others))
    with Mirror.open(remote, tmp_path / "mirror", corpus="other", limit=limit) as mirror:
        store = mirror.store(contract)
        for number, name in enumerate(store.shard_names):
            if name in theirs:
                store.opened(np.array([number]))
        assert theirs & set(mirror.cache.container(contract).names())
    with Mirror.open(
        remote, tmp_path / "mirror", corpus="corpus", limit=limit, skip_manifests=[left_out[:12]]
    ) as mirror:
        mirror.store(contract).opened(np.array([0]))
        # The limit could not have been kept with them.
        assert not theirs <= set(mirror.cache.container(contract).names())


def test_what_a_pull_is_writing_is_not_taken_for_what_a_killed_run_left(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "ann", TEXTS)
    push(cache, str(tmp_path / "team"))
    with Mirror.open(str(tmp_path / "team"), tmp_path / "mirror") as mirror:
        contract = mirror.cache.teachers()[0].contract
        store = mirror.store(contract)
        shards = mirror._shards._shards
        key = (contract.id, store.shard_names[0])
        folder = shards.path(key).parent
        folder.mkdir(exist_ok=True)
        left = folder / f".tmp-{'0' * 8}-{shards.path(key).name}"

        def is_cleared() -> bool:
            # The note of a run that was killed as it fetched the shard.
            os.close(shards.reserve(key, 100))
            left.write_bytes(b"half")
            assert not shards.clear(key)
            return shards.note(key) is None

        with arriving(shards.path(key), lambda: None) as temporary:
            temporary.write_bytes(b"half of it")
            assert is_cleared()
            assert temporary.read_bytes() == b"half of it"
        assert not left.exists()
