"""Hostile remotes: nothing enters the cache, nothing is written outside it, and there is one clear error."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from damage import flip_middle
from sharing import (
    TEXTS,
    content,
    digests_of,
    edit,
    make_cache,
    make_key,
    manifests_of,
    objects_in,
    put_manifest,
    put_object,
    replace_object,
)

from embedcache.arrow_file import read_batch
from embedcache.corpus.part import part_bytes
from embedcache.errors import EmbedCacheError, InputError, RemoteError
from embedcache.fsio import sealed, spelled_json
from embedcache.share import pull, push
from embedcache.testing import fake_teacher

ID, OTHER_ID = fake_teacher(8).contract.id, fake_teacher(8, seed=4).contract.id
D = "ab" * 32
SHARD, PART, CORPUS, RECIPE = "/shards/", r"^corpora/corpus/[0-9a-f]{64}", "corpus/corpus.json", "recipe.json"

Attack = Callable[[Path], object]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    push(make_cache(folder / "cache", TEXTS[:100], views=["crop"]).folder, str(folder / "remote"))
    return folder / "remote"


@pytest.fixture
def remote(honest: Path, tmp_path: Path) -> Path:
    """Return a copy of an honest remote, alone in a folder beside a file that nobody may touch."""
    shutil.copytree(honest, tmp_path / "box" / "remote")
    (tmp_path / "outside").write_text("untouched")
    return tmp_path / "box" / "remote"


def refused(remote: Path, *words: str) -> None:
    """Assert that a pull is refused with one error, and has written nothing but ``derived/``."""
    box = remote.parent
    with pytest.raises(RemoteError) as found:
        pull(box / "cache", str(remote))
    assert all(word in str(found.value) for word in words), found.value
    assert str(found.value).isprintable()
    assert (box.parent / "outside").read_text() == "untouched"
    assert {path.name for path in box.parent.iterdir()} == {"box", "outside"}
    assert {path.name for path in box.iterdir()} <= {"remote", "cache"}
    if (box / "cache").exists():
        assert set(content(box / "cache")) == {"cache.json"}
        assert not [path for path in (box / "cache").rglob("*") if path.is_symlink()]


def aside(remote: Path, name: str) -> Path:
    """Return a folder for another cache, outside of what is watched."""
    return remote.parents[2] / f"{remote.parents[1].name}-{name}"


# What may be wrong with a manifest


def changed(change: Callable[[dict[str, Any]], object]) -> Attack:
    """Change the manifest."""

    def do(remote: Path) -> None:
        (value,) = manifests_of(remote)
        change(value)
        put_manifest(remote, value)

    return do


def fields(**fields: object) -> Attack:
    """Change fields of the manifest."""
    return changed(lambda value: value.update(fields))


def shard(**fields: object) -> Attack:
    """Change fields of a shard in the manifest."""
    return lambda remote: edit(remote, SHARD, lambda file: file.update(fields))


def added(path: str, data: bytes = b"evil") -> Attack:
    """Add a file to the manifest."""

    def do(remote: Path) -> None:
        entry = {"path": path, "sha256": put_object(remote, data), "bytes": len(data)}
        changed(lambda value: value["files"].append(entry))(remote)

    return do


def without(pattern: str) -> Attack:
    """Leave files out of the manifest."""
    return changed(
        lambda value: value.update(files=[f for f in value["files"] if not re.search(pattern, f["path"])])
    )


# fmt: off
PATHS = [
    "../outside", "/outside", "", "C:\\x", ".tmp-x", "cache.json", f"derived/models/{ID}.json",
    f"teachers/{ID}/../../../outside", f"teachers/{ID}/shards/{D}.arrow/../../x", "corpora/../corpus.json",
    f"teachers/{ID}/shards/{D}.arrow\n", f"teachers/{ID}/vectors.mdb", f"teachers/{ID[:-1]}/contract.json",
    f"teachers/{ID}/names/.hidden.json", f"teachers/{ID}/modeling.py", "corpora/x\0/corpus.json",
    "corpora/corpus/views/original/corpus.json",
]
RAW = [
    b"", b"[]", b"\xff\xfe", b'{"files":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    b'{"version":' + b"9" * 5000 + b"}", b'{"files":[],"version":1e999,"when":"2026-01-31T12:00:00Z"}',
]
# fmt: on
MANIFESTS: dict[str, Attack] = {
    **{f"path {path!r}"[-40:]: added(path) for path in PATHS},
    **{f"raw {data[:10]!r}": lambda remote, data=data: put_manifest(remote, data) for data in RAW},  # type: ignore[misc]
    "older version": fields(version=1),
    "unknown field": fields(more=1),
    "no files": changed(lambda value: value.pop("files")),
    "time": fields(when="yesterday"),
    "long message": fields(message="x" * 5000),
    "no names": changed(lambda value: value["teachers"][0].update(names=[])),
    "negative rows": changed(lambda value: value["corpora"][0].update(rows=-1)),
    "negative bytes": shard(bytes=-5),
    "true bytes": shard(bytes=True),
    "endless bytes": shard(bytes=1 << 60),
    "no digest": shard(sha256="x"),
    "digest of another path": shard(sha256=D),
    "unknown field of a file": shard(extra=1),
    "unknown codec": shard(codec="zip"),
    "no rows": shard(rows=0),
    "rows of no shard": changed(lambda value: value["files"][0].update(rows=5)),
    "name is not its digest": lambda remote: flip_middle(next((remote / "manifests").iterdir())),
}


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_that_is_wrong_is_refused_by_its_digest(remote: Path, name: str) -> None:
    MANIFESTS[name](remote)
    (digest,) = digests_of(remote)
    refused(remote, digest[:12], "skip_manifests")


def test_a_giant_manifest_is_not_read(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedcache.share.manifest.MOST_MANIFEST_BYTES", 1000)
    refused(remote, "1,000 bytes")


def test_a_refused_manifest_stops_pushes_and_is_left_out_by_its_digest(remote: Path) -> None:
    digest = put_manifest(remote, b"{}", alone=False)
    refused(remote, digest[:12])
    with pytest.raises(RemoteError, match=digest[:12]):
        push(make_cache(aside(remote, "pusher")).folder, str(remote))
    assert pull(remote.parent / "cache", str(remote), skip_manifests=[digest[:12]]).vectors == {"fake": 100}
    for wrong in ("", "000000", digest[:3]):
        with pytest.raises(InputError):
            pull(remote.parent / "cache", str(remote), skip_manifests=[wrong])


# What may be wrong with an object


def object_of(remote: Path, kind: str) -> Path:
    return objects_in(remote)[edit(remote, kind, lambda file: None)["sha256"]]


def harmed(kind: str, change: Callable[[bytes], bytes]) -> Attack:
    """Change the bytes of an object and nothing else."""
    return lambda remote: object_of(remote, kind).write_bytes(change(object_of(remote, kind).read_bytes()))


def instead(kind: str, make: Callable[[Path], object]) -> Attack:
    """Put something else in the place of an object."""

    def do(remote: Path) -> None:
        path = object_of(remote, kind)
        path.unlink()
        make(path)

    return do


def replaced(kind: str, change: Callable[[bytes], bytes]) -> Attack:
    """Give a file other bytes, and describe it so."""
    return lambda remote: replace_object(remote, kind, change)


def resealed(kind: str, change: Callable[[dict[str, Any]], object]) -> Attack:
    """Change a sealed document, seal it again, and describe it so."""

    def other(data: bytes) -> bytes:
        value = json.loads(data)
        value.pop("sha256")
        change(value)
        return spelled_json(sealed(value))

    return replaced(kind, other)


def part_for_a_shard(remote: Path) -> None:
    part = object_of(remote, PART).read_bytes()
    replace_object(remote, SHARD, lambda data: part)


def shard_of_another(remote: Path) -> None:
    other = make_cache(aside(remote, "other"), TEXTS[:40], teacher=fake_teacher(8, seed=4))
    data = next(other.folder.glob("teachers/*/shards/*.arrow")).read_bytes()
    replace_object(remote, SHARD, lambda _: data)


def another_id(value: dict[str, Any]) -> None:
    for entry in value["files"]:
        entry["path"] = entry["path"].replace(ID, OTHER_ID)


def texts_of_others(remote: Path) -> None:
    """Give the corpus a part whose texts stand beside the keys of others."""

    def swapped(data: bytes) -> bytes:
        batch = read_batch(pa.py_buffer(data))
        texts = batch.column("original").to_pylist()
        columns = {"key": batch.column("key"), "original": pa.array(texts[::-1], pa.large_string())}
        return bytes(part_bytes(0, columns, {"original": "large_string"}))

    path = replace_object(remote, PART, swapped)
    resealed(CORPUS, lambda value: value["parts"][0].update(sha256=Path(path).stem))(remote)


def view_of_other_rows(remote: Path) -> None:
    """Give the corpus a view of another one's rows, whose recipe names this corpus."""
    other = make_cache(aside(remote, "other"), TEXTS[100:150], views=["crop"])
    digest = json.loads(object_of(remote, CORPUS).read_bytes())["digest"]
    without("views/")(remote)
    for path in other.corpus().view("crop").folder.iterdir():
        added(f"corpora/corpus/views/crop/{path.name}", path.read_bytes())(remote)
    resealed(RECIPE, lambda value: value.update(of=digest))(remote)


class Evil:
    """Unpickled, it writes to the file outside."""

    def __init__(self, remote: Path) -> None:
        self.target = remote.parents[1] / "outside"

    def __reduce__(self) -> Any:
        return Path.write_text, (self.target, "touched")


def evil_codebook(is_array: bool) -> Attack:
    """Add a codebook that is a pickle, or an array with one inside."""

    def do(remote: Path) -> None:
        stream = io.BytesIO()
        np.save(stream, np.array([Evil(remote)], dtype=object), allow_pickle=True)
        data = stream.getvalue() if is_array else pickle.dumps(Evil(remote))
        added(f"teachers/{ID}/codebooks/{put_object(remote, data)}.npy", data)(remote)

    return do


TENSORS = (1 << 40).to_bytes(8, "little") + b"{}"
OBJECTS: dict[str, Attack] = {
    **{f"cut {kind}": harmed(kind, lambda data: data[:-1]) for kind in (SHARD, PART, "contract.json")},
    "much longer": harmed(RECIPE, lambda data: data + bytes(8 << 20)),
    "flipped": harmed(RECIPE, lambda data: bytes([data[0] ^ 1]) + data[1:]),
    "empty": harmed(SHARD, lambda data: b""),
    "missing": instead(SHARD, lambda path: None),
    "link outside": instead(SHARD, lambda path: path.symlink_to(path.parents[4] / "outside")),
    "link to a device": instead(RECIPE, lambda path: path.symlink_to("/dev/zero")),
    "link to itself": instead(SHARD, lambda path: path.symlink_to(path)),
    "fifo": instead(SHARD, os.mkfifo),
    "shard with zeros": replaced(SHARD, lambda data: data[:300] + bytes(40) + data[340:]),
    "pickle for a shard": replaced(SHARD, lambda data: pickle.dumps({"a": 1})),
    "part for a shard": part_for_a_shard,
    "shard of another teacher": shard_of_another,
    "nonsense for a part": replaced(PART, lambda data: b"x" * len(data)),
    "texts of others": texts_of_others,
    "empty description": replaced(CORPUS, lambda data: b"{}"),
    "deep description": replaced(CORPUS, lambda data: b"[" * 50_000),
    "no fields": resealed(CORPUS, lambda value: value.pop("parts")),
    "empty recipe": replaced(RECIPE, lambda data: b"{}"),
    "recipe of another name": replaced(RECIPE, lambda data: data.replace(b'"crop"', b'"crap"')),
    "view of other rows": view_of_other_rows,
    "other contract": replaced("contract.json", lambda data: data.replace(b": 64", b": 65")),
    "contract under another id": changed(another_id),
    "broken seal": replaced("names/", lambda data: data.replace(b"fake", b"evil")),
    "nested name": resealed("names/", lambda value: value.update(spec={"a": 1})),
    "more rows": shard(rows=41),
    "another codec": shard(codec="int8"),
    "missing keys": shard(keys="cd" * 32),
    "more bytes": shard(bytes=5),
    "keys of others": lambda remote: shard(keys=put_object(remote, bytes(16 * 40)))(remote),
    "pickled codebook": evil_codebook(is_array=False),
    "codebook of objects": evil_codebook(is_array=True),
    "projection": added(f"teachers/{ID}/projection.safetensors", TENSORS),
    "token table": added(f"teachers/{ID}/token_embeddings.safetensors", TENSORS),
    "corpus without its description": without("^corpora/corpus/corpus.json"),
    "corpus without its part": without(PART),
    "view without its files": added("corpora/corpus/views/evil/recipe.json"),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_what_is_not_what_it_should_be_never_enters(remote: Path, name: str) -> None:
    OBJECTS[name](remote)
    refused(remote)


@pytest.mark.parametrize("name", ["shard with zeros", "texts of others", "view without its files"])
def test_nothing_enters_a_cache_that_is_in_use(remote: Path, name: str) -> None:
    mine = make_cache(remote.parent / "cache", TEXTS[100:140], name="mine")
    before = content(mine.folder)
    OBJECTS[name](remote)
    with pytest.raises(RemoteError):
        pull(mine.folder, str(remote))
    assert content(mine.folder) == before


def test_a_shard_of_no_teacher_belongs_to_nothing(remote: Path) -> None:
    edit(remote, SHARD, lambda file: file.update(path=file["path"].replace(ID, OTHER_ID)))
    assert pull(remote.parent / "cache", str(remote)).vectors == {"fake": 60}
    assert [path.name for path in (remote.parent / "cache" / "teachers").iterdir()] == [ID]


def test_a_teacher_name_cannot_be_given_to_another_contract(remote: Path) -> None:
    mine = make_cache(remote.parent / "cache", TEXTS[100:140], teacher=fake_teacher(8, seed=4))
    before = content(mine.folder)
    with pytest.raises(EmbedCacheError, match="weights"):
        pull(mine.folder, str(remote))
    assert content(mine.folder) == before


# Signatures


@pytest.fixture
def signed(tmp_path: Path) -> tuple[Path, Path]:
    """Return a remote with one signed manifest, and the public key."""
    private, public = make_key(tmp_path, "ann")
    push(make_cache(tmp_path / "ann-cache").folder, str(tmp_path / "remote"), sign=private)
    return tmp_path / "remote", public


def test_only_signed_manifests_count(signed: tuple[Path, Path], tmp_path: Path) -> None:
    remote, public = signed
    push(make_cache(tmp_path / "more", TEXTS[120:], name="more").folder, str(remote))
    # Even one that cannot be used does not matter.
    put_manifest(remote, b"{}", alone=False)
    _, other = make_key(tmp_path, "bob")
    keys = tmp_path / "keys"
    keys.write_bytes(b"# team\n\n" + other.read_bytes() + b"\n" + public.read_bytes() + b"\n")
    pull(tmp_path / "mine", str(remote), require_signature=keys)
    assert content(tmp_path / "mine") == content(tmp_path / "ann-cache")
    with pytest.raises(RemoteError, match="signed by SHA256:"):
        pull(tmp_path / "none", str(remote), require_signature=other)


def nonsense(path: Path) -> None:
    path.write_bytes(b"[" * 4000)


def forged(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_bytes()), "signature": "00" * 64}))


def of_another_key(path: Path) -> None:
    """Put Mallory's signature in the place of Ann's."""
    remote, folder = path.parents[2], path.parents[3]
    shutil.rmtree(remote)
    push(folder / "ann-cache", str(remote), sign=make_key(folder, "mallory")[0])
    (other,) = remote.glob("signatures/*/*.json")
    other.rename(other.with_name(path.name))


def of_another_manifest(path: Path) -> None:
    remote = path.parents[2]
    digest = put_manifest(remote, {**manifests_of(remote)[0], "by": "Mallory"})
    path.parent.rename(path.parent.with_name(digest))


@pytest.mark.parametrize("attack", [Path.unlink, nonsense, forged, of_another_key, of_another_manifest])
def test_manifests_without_a_right_signature_are_refused(
    signed: tuple[Path, Path], tmp_path: Path, attack: Attack
) -> None:
    remote, public = signed
    attack(next(remote.glob("signatures/*/*.json")))
    for dry_run in (True, False):
        with pytest.raises(RemoteError, match="signed by SHA256:"):
            pull(tmp_path / "mine", str(remote), require_signature=public, dry_run=dry_run)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("line", [b'command="sh" %s', b"%s\nssh-rsa AAAA x", b"", b"# %s", b"nonsense"])
def test_key_files_with_anything_else_are_refused(
    signed: tuple[Path, Path], tmp_path: Path, line: bytes
) -> None:
    remote, public = signed
    (tmp_path / "keys").write_bytes(line % public.read_bytes() if b"%s" in line else line)
    for keys in ("keys", "ann", "none"):
        with pytest.raises(InputError):
            pull(tmp_path / "mine", str(remote), require_signature=tmp_path / keys)
    with pytest.raises(InputError, match="private"):
        push(tmp_path / "ann-cache", str(tmp_path / "new"), sign=public)
    assert not (tmp_path / "new").exists()
