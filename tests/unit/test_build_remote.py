"""Builds that fetch from a remote and encode only the rest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from building import rows_encoded
from flat_build import build
from pair_helpers import classifier_folder
from sharing import OtherVectors, content, digests_of, make_cache, make_key, objects_in

from embedcache.cache import Cache
from embedcache.errors import InputError, RemoteError
from embedcache.share import push
from embedcache.share.read_through import RemoteOptions
from embedcache.share.sample import SAMPLE
from embedcache.testing import FakeEncoder, fake_teacher, sentences
from embedcache.verify import verify

TEACHER = fake_teacher(64)
TEXTS = sentences(1050, seed=8)
THEIRS, MINE = TEXTS[:1000], TEXTS[50:]
"""Of the second, 950 of 1000 are in the first."""


def built(folder: Path, texts: list[str], remote: Any = None, **settings: Any) -> Cache:
    given = str(remote) if isinstance(remote, Path) else remote
    return make_cache(folder, texts, **{"teacher": TEACHER, "shard_rows": 100, "remote": given, **settings})


@pytest.fixture
def team(tmp_path: Path) -> Path:
    push(built(tmp_path / "theirs", THEIRS).folder, str(tmp_path / "team"), by="Ann")
    return tmp_path / "team"


def shards(cache: Path) -> dict[str, str]:
    return {path: digest for path, digest in content(cache).items() if "/shards/" in path}


def test_a_corpus_that_overlaps_by_95_percent_encodes_5_percent(team: Path, tmp_path: Path) -> None:
    encoder = FakeEncoder(TEACHER)
    mine = built(tmp_path / "mine", MINE, team, encoder=encoder)
    assert mine.result is not None
    assert (mine.result.encoded, mine.result.fetched) == (50, 950)
    # A sample is compared as well, in one or two ways of batching.
    encoded = encoder.rows_encoded
    assert 50 < encoded <= 50 + 2 * SAMPLE
    assert np.array_equal(mine.lookup(MINE), built(tmp_path / "alone", MINE).lookup(MINE))
    assert not verify(mine.folder).damage
    # Shards come as they are, so a push of mine sends none of them again.
    assert len(shards(tmp_path / "theirs").items() & shards(mine.folder).items()) == 10
    assert push(mine.folder, str(team)).sent <= 6
    built(tmp_path / "mine", MINE, team, encoder=encoder)
    assert encoder.rows_encoded == encoded


def test_pushes_without_the_signature_asked_for_do_not_count(team: Path, tmp_path: Path) -> None:
    private, public = make_key(tmp_path, "ann")
    push(built(tmp_path / "signed", TEXTS[1000:]).folder, str(team), sign=private)
    mine = built(tmp_path / "mine", MINE, RemoteOptions(str(team), require_signature=public))
    assert mine.result is not None
    assert (mine.result.encoded, mine.result.fetched) == (950, 50)


def test_only_shards_with_missing_rows_come_and_no_more_than_max_bytes(team: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"max.bytes"):
        built(tmp_path / "mine", TEXTS[150:250], RemoteOptions(str(team), max_bytes=20_000))
    assert shards(tmp_path / "mine") == {}
    for texts, name, count in ((TEXTS[150:250], "some", 2), (TEXTS[:250], "more", 3)):
        built(tmp_path / "mine", texts, RemoteOptions(str(team), max_bytes=10_000_000), name=name)
        assert len(shards(tmp_path / "mine")) == count


@pytest.mark.parametrize(
    ("theirs", "mine", "encoded"), [("int8", "float16", 300), ("float16", "int8", 0), ("pq", "pq", 0)]
)
def test_a_finer_codec_is_taken_and_a_coarser_one_is_not(
    tmp_path: Path, theirs: str, mine: str, encoded: int
) -> None:
    """Rows of a product quantizer bring its codebook."""
    push(built(tmp_path / "theirs", TEXTS[:300], codec=theirs, shard_rows=300).folder, str(tmp_path / "team"))
    cache = built(tmp_path / "mine", TEXTS[:300], tmp_path / "team", codec=mine, shard_rows=300)
    assert rows_encoded(cache) == encoded
    if not encoded:
        assert np.array_equal(cache.lookup(TEXTS[:300]), Cache(tmp_path / "theirs").lookup(TEXTS[:300]))


def test_bad_vectors_are_refused_and_nothing_enters(tmp_path: Path) -> None:
    bad = built(tmp_path / "bad", THEIRS[:200], encoder=OtherVectors(TEACHER))
    push(bad.folder, str(tmp_path / "team"), by="Mallory")
    (digest,) = digests_of(tmp_path / "team")
    with pytest.raises(RemoteError, match=rf"{digest[:12]}.*Mallory"):
        built(tmp_path / "mine", MINE, tmp_path / "team")
    assert shards(tmp_path / "mine") == {}
    push(built(tmp_path / "theirs", THEIRS[200:]).folder, str(tmp_path / "team"))
    mine = built(tmp_path / "mine", MINE, RemoteOptions(str(tmp_path / "team"), skip_manifests=[digest]))
    assert np.array_equal(mine.lookup(MINE), built(tmp_path / "alone", MINE).lookup(MINE))
    assert rows_encoded(mine) == 200


def test_unavailable_vectors_are_an_error_and_the_next_build_continues(team: Path, tmp_path: Path) -> None:
    path = objects_in(team)[Cache(tmp_path / "theirs").store(TEACHER.contract).shards[0].name]
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(RemoteError, match="Ann"):
        built(tmp_path / "mine", THEIRS, team)
    assert shards(tmp_path / "mine") == {}
    path.unlink()
    push(tmp_path / "theirs", str(team))
    assert rows_encoded(built(tmp_path / "mine", THEIRS, team)) == 0


def test_embeddings_and_logits_are_fetched(tmp_path: Path) -> None:
    source = tmp_path / "texts.txt"
    settings: Any = {"teacher": classifier_folder(tmp_path / "classifier"), "name": "corpus"}
    settings |= {"compute_dtype": "float32", "device": "cpu"}
    source.write_text("\n".join(TEXTS[:60]))
    for output in ("embedding", "logits"):
        theirs = build(source, cache=tmp_path / "theirs", output=output, **settings)
    push(theirs.folder, str(tmp_path / "team"))
    source.write_text("\n".join(TEXTS[:70]))
    settings["remote"] = str(tmp_path / "team")
    for output, name in (("embedding", "classifier"), ("logits", "classifier.logits")):
        mine = build(source, cache=tmp_path / "mine", output=output, **settings)
        assert mine.result is not None
        assert (mine.result.encoded, mine.result.fetched) == (10, 60)
        assert np.array_equal(mine.lookup(TEXTS[:60], name), theirs.lookup(TEXTS[:60], name))
