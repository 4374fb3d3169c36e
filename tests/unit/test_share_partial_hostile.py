"""Parts of strangers' remotes, and parts that were cut off: all that a whole pull refuses, a part does."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from corpus_helpers import small_parts
from share_helpers import (
    TEXTS,
    assert_nothing_outside,
    content,
    make_cache,
    manifest_of,
    object_of,
    put_manifest,
    put_object,
    replace_file,
)

from embedcache import fsio
from embedcache.arrow_file import read_batch
from embedcache.cache import Cache
from embedcache.check import verify
from embedcache.corpus.part import part_bytes
from embedcache.errors import EmbedCacheError, RemoteError
from embedcache.fsio import sealed, spelled_json
from embedcache.share import PullChoice, pull, push
from embedcache.testing import fake_teacher
from embedcache.views.plan import ViewOptions

FIRST_PART = r"corpora/corpus/[0-9a-f]{64}\.arrow"
VIEW_PART = r"corpora/corpus/views/crop/[0-9a-f]{64}\.arrow"
DESCRIPTION = r"corpora/corpus/corpus\.json"
CHOICES: list[dict[str, Any]] = [{"rows": 30}, {"where": "row % 3 = 0"}]

choices = pytest.mark.parametrize("choice", CHOICES, ids=["rows", "where"])


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a remote that is as it should be, of parts of 60 rows; copy it before it is changed."""
    folder = tmp_path_factory.mktemp("honest")
    with pytest.MonkeyPatch.context() as patch:
        small_parts(patch, rows=60)
        views = ViewOptions(("crop",), embed=("crop",))
        push(make_cache(folder / "cache", TEXTS[:120], views=views), str(folder / "remote"))
    return folder / "remote"


@pytest.fixture
def remote(honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_pauses: None) -> Path:
    """Return a copy of the honest remote, beside a file that nobody may touch."""
    small_parts(monkeypatch, rows=60)
    shutil.copytree(honest, tmp_path / "box" / "remote")
    (tmp_path / "outside").write_text("untouched")
    return tmp_path / "box" / "remote"


def assert_refused(remote: Path, choice: dict[str, Any], *words: str) -> Path:
    """Assert that a pull of a part is refused, and has left a cache without a corpus, or none."""
    with pytest.raises(RemoteError) as found:
        pull(remote.parent / "cache", str(remote), PullChoice(corpora=["corpus"], **choice))
    for word in words:
        assert word in str(found.value), found.value
    cache = assert_nothing_outside(remote)
    if cache.exists():
        assert not verify(cache).damage
    return cache


@choices
def test_the_honest_remote_is_taken(remote: Path, tmp_path: Path, choice: dict[str, Any]) -> None:
    pull(tmp_path / "there", str(remote), PullChoice(corpora=["corpus"], **choice))
    assert verify(tmp_path / "there").findings == ()


@choices
@pytest.mark.parametrize(
    "path", ["../outside", "/outside", "derived/remotes/x", "corpora/.x/corpus.json", "cache.json"]
)
def test_paths_that_no_cache_has_are_refused(remote: Path, path: str, choice: dict[str, Any]) -> None:
    value = manifest_of(remote)
    value["files"] = sorted(
        [*value["files"], {"path": path, "sha256": "ab" * 32, "bytes": 5}], key=lambda file: file["path"]
    )
    put_manifest(remote, value)
    assert not assert_refused(remote, choice, "manifests/", "refused").exists()


@pytest.mark.parametrize("kind", [FIRST_PART, VIEW_PART, DESCRIPTION, "names/", "contract.json"])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data + bytes(50 << 20),
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        None,
    ],
    ids=["cut", "longer", "endless", "flipped", "gone"],
)
def test_objects_that_are_others_never_enter(
    remote: Path, kind: str, change: Callable[[bytes], bytes] | None
) -> None:
    place = object_of(remote, kind)
    if change is None:
        place.unlink()
    else:
        place.write_bytes(change(place.read_bytes()))
    cache = assert_refused(remote, {"rows": 120}, "arriv" if change else "is not there")
    if cache.exists():
        assert place.name not in content(cache).values()
        assert Cache(cache).corpus_names() == []


def _swap_texts(data: bytes, first_row: int) -> bytes:
    """Return a part whose texts stand beside the keys of others."""
    import pyarrow as pa

    batch = read_batch(pa.py_buffer(data))
    texts = batch.column("original").to_pylist()
    columns = {"key": batch.column("key"), "original": pa.array(texts[::-1], pa.large_string())}
    return bytes(part_bytes(first_row, columns, {"original": "large_string"}))


def _describe(remote: Path, old: str, new: str) -> None:
    """Describe the corpus with a part of another digest."""
    value = json.loads(object_of(remote, DESCRIPTION).read_bytes())
    value.pop("sha256")
    text = json.dumps(value).replace(old, new)
    replace_file(remote, DESCRIPTION, spelled_json(sealed(json.loads(text))))


@choices
@pytest.mark.parametrize("number", [0, 1])
def test_texts_beside_the_keys_of_others_become_no_part(
    remote: Path, number: int, choice: dict[str, Any]
) -> None:
    described = json.loads(object_of(remote, DESCRIPTION).read_bytes())
    old = described["parts"][number]["sha256"]
    data = _swap_texts(object_of(remote, old).read_bytes(), 60 * number)
    replace_file(remote, old, data)
    _describe(remote, old, hashlib.sha256(data).hexdigest())
    if number and "rows" in choice:
        # A part that is not needed is not looked at.
        pull(remote.parent / "cache", str(remote), PullChoice(corpora=["corpus"], **choice))
        assert Cache(remote.parent / "cache").corpus().texts() == TEXTS[:30]
        return
    cache = assert_refused(remote, choice, "keys are not those of their texts", "damaged or hostile")
    assert Cache(cache).corpus_names() == []
    assert Cache(cache).teachers() == []


@choices
def test_rows_of_other_numbers_become_no_part(remote: Path, choice: dict[str, Any]) -> None:
    import pyarrow as pa

    described = json.loads(object_of(remote, DESCRIPTION).read_bytes())
    old = described["parts"][0]["sha256"]
    batch = read_batch(pa.py_buffer(object_of(remote, old).read_bytes()))
    columns = {name: batch.column(name) for name in ("key", "original")}
    data = bytes(part_bytes(7, columns, {"original": "large_string"}))
    replace_file(remote, old, data)
    _describe(remote, old, hashlib.sha256(data).hexdigest())
    cache = assert_refused(remote, choice, "rows are not numbered from 0")
    assert Cache(cache).corpus_names() == []


@choices
def test_a_part_that_is_none_becomes_no_part(remote: Path, choice: dict[str, Any]) -> None:
    described = json.loads(object_of(remote, DESCRIPTION).read_bytes())
    old = described["parts"][0]["sha256"]
    data = b"ARROW1\0\0" + bytes(100) + b"ARROW1"
    replace_file(remote, old, data)
    _describe(remote, old, hashlib.sha256(data).hexdigest())
    assert_refused(remote, choice, "is refused")


@choices
def test_a_shard_of_another_teacher_is_refused(
    remote: Path, choice: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("other")
    other = make_cache(folder / "other", TEXTS[:40], teacher=fake_teacher(8, seed=7))
    # Without a row index: it is read to make one.
    replace_file(remote, "/shards/", next(other.folder.glob("teachers/*/shards/*.arrow")).read_bytes())
    assert_refused(remote, choice, "it belongs to the teacher")


@choices
@pytest.mark.parametrize("change", ["flipped", "cut", "gone", "nonsense", "of another shard"])
def test_row_indexes_that_are_none_are_refused(remote: Path, choice: dict[str, Any], change: str) -> None:
    value = manifest_of(remote)
    shards = [file for file in value["files"] if "/shards/" in file["path"]]
    for shard in shards:
        digest = shard["index"]["sha256"]
        place = remote / "objects" / digest[:2] / digest
        if change == "gone":
            place.unlink(missing_ok=True)
        elif change == "cut":
            place.write_bytes(place.read_bytes()[:-1])
        elif change == "flipped":
            data = place.read_bytes()
            place.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        elif change == "nonsense":
            shard["index"] = {"sha256": put_object(remote, bytes(700)), "bytes": 700}
    if change == "of another shard":
        indexes = [shard["index"] for shard in shards]
        for shard, index in zip(shards, [*indexes[1:], indexes[0]], strict=True):
            shard["index"] = index
    put_manifest(remote, value)
    cache = assert_refused(remote, choice)
    assert Cache(cache).corpus_names() == []


@choices
def test_vectors_that_are_not_those_of_the_index_are_refused(remote: Path, choice: dict[str, Any]) -> None:
    for file in manifest_of(remote)["files"]:
        if "/shards/" in file["path"]:
            place = remote / "objects" / file["sha256"][:2] / file["sha256"]
            data = bytearray(place.read_bytes())
            # Wherever the vectors of a shard of 40 rows of 16 bytes are, the middle is in them or its keys.
            for at in range(600, len(data) - 300, 40):
                data[at] ^= 1
            place.write_bytes(bytes(data))
    with pytest.raises(RemoteError):
        pull(remote.parent / "cache", str(remote), PullChoice(corpora=["corpus"], **choice))
    there = Cache(remote.parent / "cache")
    assert not verify(there.folder).damage
    assert len(there.store(there.teacher().contract)) == 0


@choices
def test_what_was_cut_off_is_finished_by_the_next(
    remote: Path, tmp_path: Path, choice: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(BaseException):
        pass

    count = 0

    def counting(step: str, path: Path) -> None:
        nonlocal count
        count += 1

    def cutting(step: str, path: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Cut

    monkeypatch.setattr(fsio, "on_write_step", counting)
    pull(tmp_path / "whole", str(remote), PullChoice(corpora=["corpus"], **choice), jobs=1)
    expected = content(tmp_path / "whole")
    monkeypatch.setattr(fsio, "on_write_step", cutting)
    for number in np.random.default_rng(1).choice(count, 8, replace=False).tolist():
        there = tmp_path / f"there-{number}"
        left = number
        with pytest.raises(Cut):
            pull(there, str(remote), PullChoice(corpora=["corpus"], **choice), jobs=1)
        left = 1 << 40
        if (there / "cache.json").exists():
            assert not verify(there).damage
            assert content(there).keys() <= expected.keys()
        pull(there, str(remote), PullChoice(corpora=["corpus"], **choice))
        assert {path: digest for path, digest in content(there).items() if "/shards/" not in path} == {
            path: digest for path, digest in expected.items() if "/shards/" not in path
        }
        part = Cache(there).corpus()
        assert len(Cache(there).lookup(part.texts())) == len(part)
        assert verify(there).findings == ()


def test_a_cache_with_links_in_its_derived_files_is_not_written_through(remote: Path, tmp_path: Path) -> None:
    pull(tmp_path / "there", str(remote), PullChoice(text=False))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "there" / "derived" / "remotes" / "x").parent.mkdir(exist_ok=True)
    (tmp_path / "there" / "derived" / "remotes" / "x").symlink_to(elsewhere)
    with pytest.raises(EmbedCacheError, match="symbolic link"):
        pull(tmp_path / "there", str(remote), PullChoice(corpora=["corpus"], rows=5))
    assert list(elsewhere.iterdir()) == []
