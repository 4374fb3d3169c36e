"""Verify: every changed byte is found, all else is told apart from damage, and nothing is written."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from check_helpers import KINDS, TEACHER, TEXTS, MakeCopy, files_of, flip, only, run

from embedcache.cache import Cache
from embedcache.check import CheckProgress, Finding, Kind, Verifier, verify
from embedcache.check.findings import UPGRADE
from embedcache.check.verify import shards
from embedcache.errors import CacheFormatError, InputError, MissingInputError
from embedcache.fsio import sealed, spelled_json, write_sealed_json
from embedcache.store import LmdbShards

pytest_plugins = ["check_fixtures"]

FLIPS = 2500


def found(cache: Path, path: Path, **choice: str) -> list[Finding]:
    """Return the findings of a verification that concern ``path``."""
    name = path.relative_to(cache).as_posix()
    return [one for one in verify(cache, **choice).findings if one.path.partition("#")[0] == name]


def the_damage(cache: Path, path: Path) -> Finding:
    """Return the one damage there is, which is to ``path``."""
    (one,) = [finding for finding in verify(cache).findings if finding.is_damage]
    assert one.path == path.relative_to(cache).as_posix()
    return one


def state_of(cache: Path) -> dict[str, tuple[int, int]]:
    """Return what any write would change."""
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_ino if path.is_file() else 0)
        for path in sorted(cache.rglob("*"))
    }


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_cache_is_sound_and_not_written_to(sound_caches: dict[str, Path], kind: str) -> None:
    before = state_of(sound_caches[kind])
    done = verify(sound_caches[kind])
    assert done.findings == ()
    assert state_of(sound_caches[kind]) == before
    names = files_of(sound_caches[kind])
    assert {Path(name).suffix for name in names} >= {".json", ".arrow", ".bin", ".npy"}
    assert done.bytes >= sum((sound_caches[kind] / name).stat().st_size for name in names if "arrow" in name)
    assert (done.corpus_rows, done.vectors) == (len(TEXTS), len(TEXTS))


def flips(cache: Path, count: int, seed: int) -> list[tuple[str, int, int]]:
    """Return (file, place, mask) of ``count`` seeded flips, some in every file, the more the larger it is."""
    generator = np.random.default_rng(seed)
    names = files_of(cache)
    sizes = np.array([(cache / name).stat().st_size for name in names])
    shares = np.maximum(sizes / sizes.sum() * count, 5).astype(int)
    return [
        (name, int(place), int(generator.integers(1, 256)))
        for name, size, share in zip(names, sizes, shares, strict=True)
        for place in generator.choice(size, min(size, share), replace=False)
    ]


def missed(cache: Path, chosen: list[tuple[str, int, int]]) -> list[tuple[str, int, int]]:
    """Return those of the flips that are not found where they are made."""
    verifier = Verifier(cache)
    unseen = []
    for name, place, mask in chosen:
        flip(cache / name, place, mask)
        if not any(one.is_damage for one in verifier.check_file(name)):
            unseen.append((name, place, mask))
        flip(cache / name, place, mask)
    return unseen


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_of_flipped_bytes_is_found(fresh: MakeCopy, kind: str) -> None:
    cache = fresh(kind)
    chosen = flips(cache, FLIPS // len(KINDS), seed=1)
    assert missed(cache, chosen) == []
    assert verify(cache).damage == []


def test_the_sample_is_large_enough(sound_caches: dict[str, Path]) -> None:
    assert sum(len(flips(cache, FLIPS // len(KINDS), seed=1)) for cache in sound_caches.values()) >= 2000


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_byte_is_found(fresh: MakeCopy, kind: str) -> None:
    cache = fresh(kind)
    generator = np.random.default_rng(7)
    every = [
        (name, place, int(mask))
        for name in files_of(cache)
        for place, mask in enumerate(generator.integers(1, 256, (cache / name).stat().st_size))
    ]
    assert len(every) > 100_000
    assert missed(cache, every) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_verification_finds_flips_where_they_are(fresh: MakeCopy, kind: str) -> None:
    cache = fresh(kind)
    generator = np.random.default_rng(3)
    chosen = flips(cache, 100, seed=2)
    for number in generator.choice(len(chosen), 15, replace=False):
        name, place, mask = chosen[number]
        flip(cache / name, place, mask)
        paths = {one.path.partition("#")[0] for one in verify(cache).damage}
        tokens = "derived/tokens/"
        # What vouches for another file takes that one with it.
        assert name in paths
        assert all(path == name or (path.startswith(tokens) and name.startswith(tokens)) for path in paths)
        flip(cache / name, place, mask)


@pytest.mark.parametrize("kind", KINDS)
def test_files_cut_off_emptied_or_prolonged_are_found(fresh: MakeCopy, kind: str) -> None:
    cache = fresh(kind)
    for name in files_of(cache):
        path = cache / name
        whole = path.read_bytes()
        for data in (whole[:-1], whole[: len(whole) // 2], b"", whole + b"\0"):
            path.write_bytes(data)
            assert any(one.is_damage for one in Verifier(cache).check_file(name)), (name, len(data))
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("kind", "pattern"),
    [
        ("arrow", "cache.json"),
        ("arrow", "corpora/*/corpus.json"),
        ("arrow", "corpora/*/*.arrow"),
        ("arrow", "teachers/*/contract.json"),
        ("pq", "teachers/*/codebooks/*.npy"),
        ("lmdb", "teachers/*/vectors.mdb"),
    ],
)
def test_a_missing_file_is_found(fresh: MakeCopy, kind: str, pattern: str) -> None:
    cache = fresh(kind)
    path = only(cache, pattern)
    path.unlink()
    assert "is missing" in the_damage(cache, path).found


@pytest.mark.parametrize("kind", ["arrow", "lmdb"])
def test_a_missing_shard_is_told_by_the_texts_without_a_vector(fresh: MakeCopy, kind: str) -> None:
    """Where nothing else tells of it, and where it was taken out by embedcache itself."""
    cache = fresh(kind)
    if kind == "arrow":
        only(cache, "teachers/*/shards/*").unlink()
        shutil.rmtree(cache / "derived")
    else:
        store = LmdbShards(only(cache, "teachers/*/vectors.mdb"))
        store.remove(store.names()[0])
        store.finish()
        store.close()
    done = verify(cache)
    assert done.damage == []
    (note,) = [one for one in done.notes if one.path == "corpora/corpus"]
    assert "of its 640 texts have no vector of teacher fake" in note.found


def test_everything_damaged_is_found_at_once(fresh: MakeCopy) -> None:
    cache = fresh("pq")
    names = [name for name in files_of(cache) if "tokens" not in name]
    for name in names:
        flip(cache / name, (cache / name).stat().st_size // 2, 1)
    paths = {one.path for one in verify(cache).damage}
    assert set(names) <= paths


def test_a_damaged_lmdb_file_is_never_given_to_liblmdb(
    fresh: MakeCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = fresh("lmdb")
    path = only(cache, "teachers/*/vectors.mdb")
    monkeypatch.setattr(shards, "open_shared", lambda *_, **__: pytest.fail("liblmdb was given the file"))
    flip(path, 4096 + 20, 255)
    assert the_damage(cache, path).kind == Kind.STORE.value
    # Without a seal it is the structure that tells.
    only(cache, "teachers/*/vectors.seal.json").unlink()
    path.write_bytes(path.read_bytes()[:-4096])
    assert the_damage(cache, path).kind == Kind.STORE.value


def test_an_unsealed_store_is_no_damage_but_its_shards_are_read(fresh: MakeCopy) -> None:
    cache = fresh("lmdb")
    path = only(cache, "teachers/*/vectors.mdb")
    only(cache, "teachers/*/vectors.seal.json").unlink()
    (note,) = verify(cache).findings
    assert not note.is_damage
    assert "not sealed" in note.found
    place = path.read_bytes().index(b"ARROW1") + 3000
    flip(path, place, 1)
    (damage,) = verify(cache).damage
    assert damage.path.startswith(f"{path.relative_to(cache).as_posix()}#")
    assert damage.kind == Kind.SHARD.value


def test_an_empty_store_is_a_build_that_ended_as_it_began(fresh: MakeCopy) -> None:
    cache = fresh("lmdb")
    path = only(cache, "teachers/*/vectors.mdb")
    only(cache, "teachers/*/vectors.seal.json").unlink()
    path.write_bytes(b"")
    (note,) = found(cache, path)
    assert not note.is_damage
    assert "empty" in note.found


def test_a_newer_format_asks_for_an_upgrade(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    write_sealed_json(cache / "cache.json", {"format": "embedcache", "version": 3})
    damage = the_damage(cache, cache / "cache.json")
    assert "version 3" in damage.found
    assert damage.way_out == UPGRADE
    assert "repair" not in damage.way_out


def test_half_copied_and_foreign_files_are_noted(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    shard = only(cache, "teachers/*/shards/*")
    strangers = {
        shard.with_name(f"{shard.name}.partial"): "not finished",
        shard.with_name(f"{shard.name}.tmp"): "not finished",
        shard.with_name("part-00000.arrow"): "not finished",
        cache / "README.txt": "does not know",
        cache / "corpora" / "corpus" / "model.pkl": "does not know",
    }
    for path in strangers:
        path.write_bytes(b"half")
    assert verify(cache).damage == []
    for path, words in strangers.items():
        (one,) = found(cache, path)
        assert one.kind == Kind.FOREIGN.value
        assert words in one.found


def test_a_shard_that_is_cut_off_says_so(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    shard = only(cache, "teachers/*/shards/*")
    shard.write_bytes(shard.read_bytes()[:3000])
    assert "cut off" in the_damage(cache, shard).found


def test_what_a_crash_left_is_noted_with_size_and_age(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    left = cache / "corpora" / "corpus" / ".tmp-0123-part.arrow"
    left.write_bytes(bytes(1234))
    os.utime(left, (time.time() - 7200,) * 2)
    (one,) = verify(cache).findings
    assert not one.is_damage
    assert one.path == left.relative_to(cache).as_posix()
    assert "1,234 bytes" in one.found
    assert "2.0 hours" in one.found


def test_links_and_pipes_are_damage_and_not_followed(fresh: MakeCopy, tmp_path: Path) -> None:
    cache = fresh("arrow")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.json").write_text("{}")
    (cache / "corpora" / "linked").symlink_to(outside)
    (cache / "teachers" / "link.json").symlink_to(outside / "secret.json")
    os.mkfifo(cache / "corpora" / "corpus" / "pipe")
    damage = verify(cache).damage
    assert {one.path for one in damage} == {"corpora/linked", "teachers/link.json", "corpora/corpus/pipe"}
    assert {one.kind for one in damage} == {Kind.SPECIAL.value}


def test_names_that_cannot_be_shown_are_shown_escaped(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    for name in (b"line\nbreak", b"\xff\xfe", b"\x1b[31mred"):
        Path(os.fsdecode(bytes(cache) + b"/" + name)).write_bytes(b"")
    code, text = run("verify", "--cache", cache)
    assert code == 0
    for shown in ("line\\nbreak", "\\udcff", "\\x1b[31mred"):
        assert shown in text


def test_only_what_is_asked_for_is_checked(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    part, shard = only(cache, "corpora/*/*.arrow"), only(cache, "teachers/*/shards/*")
    flip(part, 500, 1)
    flip(shard, 500, 1)
    assert len(verify(cache).damage) == 2
    assert [one.kind for one in verify(cache, corpus="corpus").damage] == [Kind.PART.value]
    for teacher in ("fake", "other-name", TEACHER.contract.id[:8]):
        assert [one.kind for one in verify(cache, teacher=teacher).damage] == [Kind.SHARD.value]
    for choice in ({"corpus": "no"}, {"teacher": "no"}):
        with pytest.raises(InputError, match=r"it holds (corpus|fake, other-name)"):
            verify(cache, **choice)


def test_what_is_no_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError):
        verify(tmp_path / "none")
    (tmp_path / "file.txt").write_text("no cache")
    with pytest.raises(CacheFormatError, match="is no cache"):
        verify(tmp_path)


def test_progress_comes_to_its_end(sound_caches: dict[str, Path]) -> None:
    steps: list[CheckProgress] = []
    done = verify(sound_caches["arrow"], on_progress=steps.append)
    read = [step for step in steps if step.phase == "read files"][-1]
    assert read.files == read.total_files == done.files
    assert 0 < read.bytes <= read.total_bytes
    for phase in ("read rows", "look up texts"):
        last = [step for step in steps if step.phase == phase][-1]
        assert last.rows == last.total_rows == len(TEXTS)


def test_the_command_says_what_it_found(fresh: MakeCopy) -> None:
    cache = fresh("arrow")
    code, text = run("verify", "--cache", cache)
    assert code == 0
    assert "sound, 0 notes; 16 files" in text
    flip(only(cache, "teachers/*/shards/*"), 900, 4)
    (cache / "notes.txt").write_text("mine")
    code, text = run("verify", "--cache", cache)
    assert code == 1
    assert "1 damaged" in text
    assert "embedcache repair" in text
    assert "notes.txt" in text
    code, text = run("verify", "--cache", cache, "--json")
    told = json.loads(text)
    assert code == 1
    assert told["sound"] is False
    assert {one["severity"] for one in told["findings"]} == {"damage", "note"}
    assert "deep" not in told
    assert run("verify", "--cache", cache, "--corpus", "corpus")[0] == 0
    assert run("verify", "--cache", cache, "--teacher", "fake")[0] == 1


@pytest.mark.parametrize("columns", [80, 200])
def test_findings_can_be_read_on_narrow_terminals(fresh: MakeCopy, columns: int) -> None:
    cache = fresh("pq")
    for name in files_of(cache):
        flip(cache / name, (cache / name).stat().st_size // 2, 1)
    _, text = run("verify", "--cache", cache, columns=columns)
    findings = verify(cache).findings
    heads = [line for line in text.splitlines()[:-1] if not line.startswith("  ")]
    assert len(heads) == len(findings)
    for head, one in zip(heads, findings, strict=True):
        # Whole in one line, but for digests, of which twelve digits are shown.
        shown = re.sub("([0-9a-f]{12})[0-9a-f]{20,52}", r"\1…", one.path)
        assert head == f"{shown} ({one.kind}): {one.severity}"
    assert all(len(line) <= columns for line in text.splitlines() if line.startswith("  "))


def test_the_last_line_says_which_rows_were_counted(fresh: MakeCopy) -> None:
    _, text = run("verify", "--cache", fresh("arrow"))
    assert f" {len(TEXTS)} corpus rows, {len(TEXTS)} vectors in " in text
    code, text = run("verify", "--cache", fresh("lmdb"), "--json")
    assert code == 0
    assert (json.loads(text)["corpus_rows"], json.loads(text)["vectors"]) == (len(TEXTS), len(TEXTS))


def test_every_way_out_can_be_read_alone(fresh: MakeCopy) -> None:
    cache = fresh("pq")
    for name in files_of(cache):
        flip(cache / name, 20, 1)
    for one in verify(cache).findings:
        assert one.found
        assert one.way_out
        assert "\n" not in one.found + one.way_out
        assert str(cache) not in one.found


def test_a_seal_vouches_for_nothing_but_its_own_file(fresh: MakeCopy) -> None:
    cache = fresh("lmdb")
    path = only(cache, "teachers/*/vectors.seal.json")
    told = json.loads(path.read_bytes())
    del told["sha256"]
    path.write_bytes(spelled_json(sealed({**told, "digest": "0" * 64})))
    assert the_damage(cache, path.with_name("vectors.mdb")).kind == Kind.STORE.value


def test_a_part_is_read_for_its_digest_once(fresh: MakeCopy, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = fresh("arrow")

    def refuse(path: Path) -> str:
        raise AssertionError(f"{path} is read again")

    monkeypatch.setattr("embedcache.corpus.part.sha256_file", refuse)
    assert verify(cache).findings == ()
    with pytest.raises(AssertionError, match="read again"):
        Cache(fresh("lmdb")).corpus().texts()
