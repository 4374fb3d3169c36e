"""Licences are news of their own: one that is declared late is kept, and contradictions are told of."""

from __future__ import annotations

from pathlib import Path

import pytest
from share_helpers import TEXTS, files_of, make_cache, make_key

from embedcache.cache import Cache
from embedcache.errors import InputError
from embedcache.fsio import read_sealed_json, write_sealed_json
from embedcache.share import PushChoice, collect_remote, list_remote, pull, push


@pytest.fixture
def remote(tmp_path: Path) -> str:
    return str(tmp_path / "remote")


@pytest.fixture
def cache(tmp_path: Path, remote: str) -> Cache:
    """Return a cache that was pushed without a licence."""
    cache = make_cache(tmp_path / "cache", TEXTS[:40])
    push(cache, remote)
    return cache


def licences(remote: str) -> tuple[str, str]:
    """Return the licence of the only teacher and of the only corpus of a remote."""
    listing = list_remote(remote)
    return listing.teachers[0].licence, listing.corpora[0].licence


def test_a_licence_of_texts_can_be_declared_later(cache: Cache, remote: str) -> None:
    done = push(cache, remote, text_licence="cc-by-4.0", by="Ann", message="hello")
    assert (done.sent, bool(done.manifest)) == (0, True)
    (told,) = done.told
    assert "the licence 'cc-by-4.0' of corpus 'corpus'" in told
    assert licences(remote) == ("", "cc-by-4.0")
    assert ("Ann", "hello") in {(each.by, each.message) for each in list_remote(remote).pushes}
    # In the same words, or without any, there is nothing more to add.
    for licence in ("cc-by-4.0", "CC-BY-4.0", ""):
        assert push(cache, remote, text_licence=licence).manifest == ""
    assert len(files_of(Path(remote), "manifests")) == 2
    # The manifest that declares it stays.
    collect_remote(remote, hours=0.0, delete=True)
    assert licences(remote) == ("", "cc-by-4.0")


def test_a_licence_of_a_model_can_be_declared_later(cache: Cache, remote: str) -> None:
    (name,) = cache.folder.glob("teachers/*/names/fake.json")
    write_sealed_json(name, {**read_sealed_json(name), "licence": "mit"})
    # The note on the teacher is a new file; a push of that alone leaves nothing to declare.
    assert push(Cache(cache.folder), remote).manifest
    assert licences(remote) == ("mit", "")
    assert push(Cache(cache.folder), remote).manifest == ""


def test_a_licence_that_contradicts_an_earlier_one_is_told_of(cache: Cache, remote: str) -> None:
    push(cache, remote, text_licence="cc-by-4.0")
    named = PushChoice(corpora=["corpus"])
    done = push(cache, remote, named, text_licence="cc0")
    (told,) = (line for line in done.told if "earlier" in line)
    for text in ("corpus 'corpus'", "'cc0'", "'cc-by-4.0'", f"--drop {done.manifest[:12]} --yes"):
        assert text in told
    assert push(cache, remote, text_licence="cc0").told == ()
    collect_remote(remote, drop=[done.manifest[:12]], delete=True)
    assert licences(remote) == ("", "cc-by-4.0")


def test_a_licence_for_all_contradicts_nobodys(tmp_path: Path, cache: Cache, remote: str) -> None:
    push(cache, remote, text_licence="cc-by-4.0")
    pull(tmp_path / "mine", remote, sample_check=False)
    mine = make_cache(tmp_path / "mine", TEXTS[40:80], name="own")
    before = files_of(Path(remote), "objects")
    with pytest.raises(
        InputError,
        match=r"'cc0': .* declare 'cc-by-4.0' for corpus 'corpus', and nothing was sent: .*--corpus",
    ):
        push(mine, remote, text_licence="cc0")
    assert files_of(Path(remote), "objects") == before
    push(mine, remote, PushChoice(corpora=["own"]), text_licence="cc0")
    declared = {corpus.name: corpus.licence for corpus in list_remote(remote).corpora}
    assert declared == {"corpus": "cc-by-4.0", "own": "cc0"}
    # The same in other capitals is no other one.
    push(cache, remote, text_licence="CC-BY-4.0")


def test_a_key_declares_a_licence_of_its_own(tmp_path: Path, cache: Cache, remote: str) -> None:
    private, _ = make_key(tmp_path, "ann")
    push(cache, remote, text_licence="cc0")
    push(cache, remote, sign=private)
    assert push(cache, remote, text_licence="cc0", sign=private).manifest
    assert push(cache, remote, text_licence="cc0", sign=private).manifest == ""


def test_what_was_given_for_a_card_that_was_not_written_is_told_of(cache: Cache, remote: str) -> None:
    done = push(cache, remote, by="Ann", message="hello")
    assert done.manifest == ""
    assert done.told == ("--message was not kept: earlier manifests list all of this push",)
    # Everybody gives a name with every sync.
    assert push(cache, remote, by="Ann").told == ()
    told = push(cache, remote, PushChoice(text=False), text_licence="cc0").told
    assert told == ("--text-licence was not kept: no texts were pushed",)
