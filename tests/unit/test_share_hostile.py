"""Hostile remotes: nothing enters the cache, nothing is written outside it, and there is one clear error."""

from __future__ import annotations

import hashlib
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
import pytest
from damage import flip_middle
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from share_helpers import (
    TEXTS,
    WHEN,
    content,
    digests_of,
    edit,
    make_cache,
    make_key,
    manifests_of,
    objects_of,
    put_manifest,
    put_object,
    replace_object,
)

from embedcache.arrow_file import read_batch
from embedcache.corpus.part import part_bytes
from embedcache.errors import EmbedCacheError, InputError, RemoteError
from embedcache.fsio import canonical_json, sealed, spelled_json
from embedcache.share import Selection, list_remote, pull, push
from embedcache.share.manifest import Manifest, manifest_name, parse_manifest
from embedcache.testing import fake_teacher
from embedcache.views.plan import ViewOptions

ID = fake_teacher(8).contract.id
D = "ab" * 32
CROP = ViewOptions(("crop",))
SHARD, PART = r"/shards/", r"^corpora/corpus/[0-9a-f]{64}"


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("honest")
    push(make_cache(folder / "cache", TEXTS[:100], views=CROP).folder, str(folder / "remote"))
    return folder / "remote"


@pytest.fixture
def remote(honest: Path, tmp_path: Path) -> Path:
    """Return a copy of an honest remote, alone in a folder beside a file that nobody may touch."""
    shutil.copytree(honest, tmp_path / "box" / "remote")
    (tmp_path / "outside").write_text("untouched")
    return tmp_path / "box" / "remote"


def refused(remote: Path, *words: str, selection: Selection | None = None, **options: Any) -> str:
    """Assert that a pull is refused with one error, and has written nothing but ``derived/``."""
    cache = remote.parent / "cache"
    with pytest.raises(RemoteError) as found:
        pull(cache, str(remote), selection, **options)
    told = str(found.value)
    for word in words:
        assert word in told, told
    assert told.isprintable()
    nothing_entered(remote)
    return told


def nothing_entered(remote: Path) -> None:
    box = remote.parent
    assert (box.parent / "outside").read_text() == "untouched"
    assert {path.name for path in box.parent.iterdir()} == {"box", "outside"}
    assert {path.name for path in box.iterdir()} <= {"remote", "cache"}
    if (box / "cache").exists():
        assert set(content(box / "cache")) == {"cache.json"}
        assert not [path for path in (box / "cache").rglob("*") if path.is_symlink()]


def aside(remote: Path, name: str) -> Path:
    """Return a folder for another cache, outside of what is watched."""
    return remote.parents[2] / f"{remote.parents[1].name}-{name}"


def the_manifest(remote: Path) -> dict[str, Any]:
    (value,) = manifests_of(remote)
    return value


def test_the_honest_remote_is_pulled(remote: Path) -> None:
    assert pull(remote.parent / "cache", str(remote)).vectors == {"fake": 100}


# Manifests


@pytest.mark.parametrize(
    "path",
    [
        "../outside",
        "/outside",
        f"teachers/{ID}/../../../outside",
        f"teachers/{ID}/shards/{D}.arrow/../../x",
        f"teachers/{ID}/shards/{D}.arrow\n",
        f"teachers/{ID}/shards/.{D}.arrow",
        f"teachers/{ID}/vectors.mdb",
        f"teachers/{ID}/vectors.seal.json",
        f"teachers/{ID[:-1]}/contract.json",
        f"teachers/{ID}/names/../../x.json",
        f"teachers/{ID}/names/.hidden.json",
        f"teachers/{ID}/modeling.py",
        "corpora/../corpus.json",
        "corpora/.hidden/corpus.json",
        "corpora/corpus/views/original/corpus.json",
        "corpora/a/b/corpus.json",
        "corpora\\x\\corpus.json",
        "corpora/x\0/corpus.json",
        "cache.json",
        f"derived/models/{ID}.json",
        f"derived/index/{ID}/checked.bin",
        "quarantine/x",
        ".tmp-x",
        "C:\\x",
        "",
    ],
    ids=lambda path: repr(path)[-30:],
)
def test_paths_that_no_cache_shares_are_refused(remote: Path, path: str) -> None:
    value = the_manifest(remote)
    value["files"].append({"path": path, "sha256": put_object(remote, b"evil"), "bytes": 4})
    digest = put_manifest(remote, value)
    assert digest[:12] in refused(remote, "--skip-manifest")
    assert not (remote.parent / "cache" / "corpora").exists()
    with pytest.raises(RemoteError):
        push(make_cache(aside(remote, "pusher")).folder, str(remote))
    assert list(list_remote(str(remote)).refused) == [digest]


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.update(version=1),
        lambda value: value.update(version="2"),
        lambda value: value.update(more=1),
        lambda value: value.update(files={}),
        lambda value: value.pop("files"),
        lambda value: value.update(when="yesterday"),
        lambda value: value.update(message="x" * 5000),
        lambda value: value["corpora"][0].update(rows=-1),
        lambda value: value["files"][-1].update(bytes=-5),
        lambda value: value["files"][-1].update(bytes=1.5),
        lambda value: value["files"][-1].update(bytes=True),
        lambda value: value["files"][-1].update(bytes=1 << 60),
        lambda value: value["files"][-1].update(sha256="x"),
        lambda value: value["files"][-1].update(sha256=D),
        lambda value: value["files"][-1].update(extra=1),
        lambda value: value["files"][-1].update(codec="zip"),
        lambda value: value["files"][-1].update(keys=""),
        lambda value: value["files"][-1].update(rows=0),
        lambda value: value["files"][0].update(rows=5),
        lambda value: value["files"][-1].pop("bytes"),
        lambda value: value["files"][-1].update(path="x" * 5000),
    ],
)
def test_manifests_with_wrong_or_unknown_fields_are_refused(
    remote: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    value = the_manifest(remote)
    assert value["files"][-1]["rows"]
    change(value)
    digest = put_manifest(remote, value)
    assert digest[:12] in refused(remote, "manifest")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{" * 100_000,
        b'{"files":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b"\xff\xfe",
        b'{"files":[],"version":NaN,"when":"2026-01-31T12:00:00Z"}',
        b'{"files":[],"version":1e999,"when":"2026-01-31T12:00:00Z"}',
        b'{"version":' + b"9" * 5000 + b"}",
    ],
    ids=lambda data: repr(data[:24]),
)
def test_manifests_that_are_no_json_object_are_refused(remote: Path, data: bytes) -> None:
    put_manifest(remote, data)
    refused(remote, "manifest")


def test_a_giant_manifest_is_not_read(remote: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embedcache.share.remote.MOST_MANIFEST_BYTES", 1000)
    refused(remote, "1,000 bytes")


def test_a_manifest_of_too_many_files_is_refused(remote: Path) -> None:
    value = the_manifest(remote)
    part = canonical_json(value["files"][0])
    rest = canonical_json({**value, "files": []})
    put_manifest(remote, rest.replace(b'"files":[]', b'"files":[' + b",".join([part] * 250_001) + b"]"))
    refused(remote, "manifest", "250000")


def test_a_manifest_whose_name_is_not_its_digest_is_refused(remote: Path) -> None:
    flip_middle(next((remote / "manifests").iterdir()))
    refused(remote, "manifest", digests_of(remote)[0][:12])


def test_a_refused_manifest_is_left_out_with_skip_manifest(remote: Path) -> None:
    digest = put_manifest(remote, b"{}", alone=False)
    refused(remote, digest[:12])
    done = pull(remote.parent / "cache", str(remote), skip_manifests=[digest[:12]])
    assert done.vectors == {"fake": 100}
    for wrong in ("", "000000", digest[:3]):
        with pytest.raises(InputError, match="remote ls"):
            pull(remote.parent / "cache", str(remote), skip_manifests=[wrong])


# Objects


@pytest.mark.parametrize("kind", [SHARD, PART, "contract.json", "names/", "recipe.json"])
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data + b"x",
        lambda data: data + bytes(8 << 20),
        lambda data: bytes([data[0] ^ 1]) + data[1:],
        lambda data: b"",
        None,
    ],
    ids=["cut", "longer", "much longer", "flipped", "empty", "missing"],
)
def test_objects_of_other_bytes_never_enter(
    remote: Path, kind: str, change: Callable[[bytes], bytes] | None
) -> None:
    file = edit(remote, kind, lambda file: None)
    path = objects_of(remote)[file["sha256"]]
    path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))
    refused(remote)


@pytest.mark.parametrize("target", ["outside", "/dev/zero", "nowhere", "loop"])
@pytest.mark.parametrize("kind", [SHARD, "recipe.json"])
def test_links_in_the_place_of_objects_never_enter(
    remote: Path, target: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    path = objects_of(remote)[edit(remote, kind, lambda file: None)["sha256"]]
    path.unlink()
    path.symlink_to({"outside": remote.parents[1] / "outside", "loop": path}.get(target, target))
    refused(remote)


def test_a_fifo_in_the_place_of_an_object_never_enters(remote: Path) -> None:
    path = objects_of(remote)[edit(remote, SHARD, lambda file: None)["sha256"]]
    path.unlink()
    os.mkfifo(path)
    refused(remote)


# Files that are not what their places in a cache ask for


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (SHARD, lambda data: data[:300] + bytes(40) + data[340:]),
        (SHARD, lambda data: pickle.dumps({"a": 1})),
        (PART, lambda data: b"x" * len(data)),
        ("corpora/corpus/corpus.json", lambda data: b"{}"),
        ("corpora/corpus/corpus.json", lambda data: b"[" * 50_000),
        ("corpora/corpus/corpus.json", lambda data: spelled_json(sealed({"version": 2, "name": "corpus"}))),
        ("views/crop/corpus.json", lambda data: b"{}"),
        ("views/crop/recipe.json", lambda data: b"{}"),
        ("views/crop/recipe.json", lambda data: b"\xff"),
        ("views/crop/recipe.json", lambda data: data.replace(b'"crop"', b'"crap"')),
        ("contract.json", lambda data: data.replace(b'"max_length": 64', b'"max_length": 65')),
        ("contract.json", lambda data: b"{}"),
        ("names/", lambda data: data.replace(b"fake", b"evil")),
        ("names/", lambda data: spelled_json(sealed({"spec": {"a": 1}}))),
    ],
)
def test_files_that_are_not_what_their_place_asks_for(
    remote: Path, kind: str, change: Callable[[bytes], bytes]
) -> None:
    replace_object(remote, kind, change)
    refused(remote)


def test_a_part_in_the_place_of_a_shard(remote: Path) -> None:
    objects, files = objects_of(remote), {file["path"]: file for file in the_manifest(remote)["files"]}
    part = next(file for path, file in files.items() if re.search(PART, path))
    replace_object(remote, SHARD, lambda data: objects[part["sha256"]].read_bytes())
    refused(remote, "shards/")


@pytest.mark.parametrize(
    "change",
    [
        lambda file: file.update(rows=file["rows"] + 1),
        lambda file: file.update(codec="int8"),
        lambda file: file.update(keys="cd" * 32),
        lambda file: file.update(bytes=file["bytes"] + 1),
        lambda file: file.update(path=file["path"].replace(ID, fake_teacher(8, seed=4).contract.id)),
    ],
    ids=["rows", "codec", "keys", "bytes", "teacher"],
)
def test_a_manifest_that_lies_about_a_shard(remote: Path, change: Callable[[dict[str, Any]], object]) -> None:
    edit(remote, SHARD, change)
    if all(ID in file["path"] for file in the_manifest(remote)["files"] if file.get("rows")):
        refused(remote, "--skip-manifest")
    else:
        # A shard of a teacher without a contract and a name belongs to nothing.
        assert pull(remote.parent / "cache", str(remote)).vectors == {"fake": 60}
        assert [path.name for path in (remote.parent / "cache" / "teachers").iterdir()] == [ID]


def test_a_key_list_that_lies(remote: Path) -> None:
    keys = np.random.default_rng(0).bytes(16 * 40)
    edit(remote, SHARD, lambda file: file.update(keys=put_object(remote, keys[: 16 * file["rows"]])))
    refused(remote, "keys")
    # With a corpus chosen, the lists say which shards come: that of the lie does not.
    done = pull(remote.parent / "cache", str(remote), Selection(corpora=["corpus"]))
    assert done.vectors["fake"] < 100


def test_a_shard_of_another_contract(remote: Path) -> None:
    other = make_cache(aside(remote, "other"), TEXTS[:40], teacher=fake_teacher(8, seed=4))
    shard = next(other.folder.glob("teachers/*/shards/*.arrow"))
    replace_object(remote, SHARD, lambda data: shard.read_bytes())
    refused(remote, "shards/")


def test_a_contract_under_another_id(remote: Path) -> None:
    value = the_manifest(remote)
    other = fake_teacher(8, seed=4).contract.id
    for file in value["files"]:
        file["path"] = file["path"].replace(ID, other)
    put_manifest(remote, value)
    refused(remote, "contract.json")


def swapped(data: bytes) -> bytes:
    """Return a part whose texts stand beside the keys of others."""
    import pyarrow as pa

    batch = read_batch(pa.py_buffer(data))
    texts = batch.column("original").to_pylist()
    columns = {"key": batch.column("key"), "original": pa.array(texts[::-1], pa.large_string())}
    return bytes(part_bytes(0, columns, {"original": "large_string"}))


def test_texts_beside_the_keys_of_others(remote: Path) -> None:
    old = edit(remote, PART, lambda file: None)["sha256"]
    path = replace_object(remote, PART, swapped)

    def described(data: bytes) -> bytes:
        value = json.loads(data.replace(old.encode(), Path(path).stem.encode()))
        value.pop("sha256")
        return spelled_json(sealed(value))

    replace_object(remote, "corpora/corpus/corpus.json", described)
    refused(remote, "keys")


def test_a_view_of_other_rows(remote: Path) -> None:
    other = make_cache(aside(remote, "other"), TEXTS[100:150], views=CROP)
    corpus, view = other.corpus(), other.corpus().view("crop")
    value, mine = the_manifest(remote), re.compile("views/crop/")
    value["files"] = [file for file in value["files"] if not mine.search(file["path"])]
    recipe = json.loads((view.folder / "recipe.json").read_bytes())
    recipe.pop("sha256")
    described = next(file for file in value["files"] if file["path"] == "corpora/corpus/corpus.json")
    description = json.loads(objects_of(remote)[described["sha256"]].read_bytes())
    assert recipe["of"] == corpus.info.digest
    recipe["of"] = description["digest"]
    files = {path.name: path.read_bytes() for path in view.folder.iterdir()}
    files["recipe.json"] = spelled_json(sealed(recipe))
    for name, data in files.items():
        place = f"corpora/corpus/views/crop/{name}"
        value["files"].append({"path": place, "sha256": put_object(remote, data), "bytes": len(data)})
    put_manifest(remote, value)
    refused(remote, "views/crop", "rows")


@pytest.mark.parametrize("what", ["pickle", "object array", "text"])
def test_codebooks_that_are_none(remote: Path, what: str) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.write_text, (remote.parents[1] / "outside", "touched")

    stream = io.BytesIO()
    np.save(stream, np.array([Evil()], dtype=object), allow_pickle=True)
    data = {"pickle": pickle.dumps(Evil()), "object array": stream.getvalue(), "text": b"text"}[what]
    value = the_manifest(remote)
    digest = put_object(remote, data)
    path = f"teachers/{ID}/codebooks/{digest}.npy"
    value["files"].append({"path": path, "sha256": digest, "bytes": len(data)})
    put_manifest(remote, value)
    refused(remote, "codebook")


@pytest.mark.parametrize("name", ["projection.safetensors", "token_embeddings.safetensors"])
def test_tensors_that_belong_to_no_such_teacher(remote: Path, name: str) -> None:
    value = the_manifest(remote)
    data = (1 << 40).to_bytes(8, "little") + b"{}"
    file = {"path": f"teachers/{ID}/{name}", "sha256": put_object(remote, data), "bytes": len(data)}
    value["files"].append(file)
    put_manifest(remote, value)
    refused(remote, name)


def test_nothing_enters_a_cache_that_is_in_use(remote: Path) -> None:
    mine = make_cache(remote.parent / "cache", TEXTS[100:140], name="mine")
    before = content(mine.folder)
    replace_object(remote, "names/", lambda data: b"{}")
    replace_object(remote, SHARD, lambda data: data[:-8] + bytes(8))
    with pytest.raises(RemoteError):
        pull(mine.folder, str(remote))
    assert content(mine.folder) == before


def test_a_teacher_name_cannot_be_given_to_another_contract(remote: Path) -> None:
    mine = make_cache(remote.parent / "cache", TEXTS[100:140], teacher=fake_teacher(8, seed=4))
    before = content(mine.folder)
    with pytest.raises(EmbedCacheError, match="weights"):
        pull(mine.folder, str(remote))
    assert content(mine.folder) == before


# Fuzzing

_WEIRD: st.SearchStrategy[Any] = st.sampled_from(
    [None, True, -1, 0, 1 << 70, 1.5, "", "../x", "\0", D, [], {}, [[]], "x" * 2000, "cache.json"]
)


@given(data=st.data())
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_manifest_bytes_give_a_manifest_or_a_value_error(honest: Path, data: st.DataObject) -> None:
    changed = bytearray(next((honest / "manifests").iterdir()).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 1))
        changed[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    name = manifest_name(bytes(changed), WHEN)
    try:
        found = parse_manifest(name, bytes(changed))
    except ValueError:
        return
    assert isinstance(found, Manifest)
    assert all(".." not in file.path.split("/") for file in found.files)


@given(data=st.data())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_manifests_give_a_pull_or_one_error(
    honest: Path, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    remote = folder / "remote"
    shutil.copytree(honest, remote)
    value = the_manifest(remote)
    whole = {(file["path"], file["sha256"]) for file in value["files"]}
    target: Any = value
    if data.draw(st.booleans()):
        target = data.draw(st.sampled_from(value["files"]))
    target[data.draw(st.sampled_from(sorted(target)))] = data.draw(_WEIRD)
    put_manifest(remote, value)
    try:
        pull(folder / "cache", str(remote))
    except EmbedCacheError:
        assert set(content(folder / "cache")) == {"cache.json"} if (folder / "cache").exists() else True
    else:
        assert set(content(folder / "cache").items()) <= {*whole, *content(honest.parent / "cache").items()}
    assert {path.name for path in folder.iterdir()} <= {"remote", "cache"}


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
    pull(tmp_path / "mine", str(remote), require_signature=public)
    assert content(tmp_path / "mine") == content(tmp_path / "ann-cache")


@pytest.mark.parametrize("how", ["unsigned", "another key", "forged", "of another manifest", "nonsense"])
def test_manifests_without_a_right_signature_are_refused(
    signed: tuple[Path, Path], tmp_path: Path, how: str
) -> None:
    remote, public = signed
    (path,) = remote.glob("signatures/*/*.json")
    if how == "unsigned":
        shutil.rmtree(remote / "signatures")
    elif how == "another key":
        private, _ = make_key(tmp_path, "mallory")
        shutil.rmtree(remote)
        push(tmp_path / "ann-cache", str(remote), sign=private)
        # Mallory's signature in the place of Ann's.
        (other,) = remote.glob("signatures/*/*.json")
        other.rename(other.with_name(path.name))
    elif how == "forged":
        value = json.loads(path.read_bytes())
        path.write_text(json.dumps({**value, "signature": "00" * 64}))
    elif how == "of another manifest":
        digest = put_manifest(remote, {**manifests_of(remote)[0], "by": "Mallory"})
        path.parent.rename(path.parent.with_name(digest))
    else:
        path.write_bytes(b"[" * 4000)
    for dry_run in (True, False):
        with pytest.raises(RemoteError, match="signed by SHA256:"):
            pull(tmp_path / "mine", str(remote), require_signature=public, dry_run=dry_run)
    assert not (tmp_path / "mine").exists()


def test_a_file_of_several_keys(signed: tuple[Path, Path], tmp_path: Path) -> None:
    remote, public = signed
    _, other = make_key(tmp_path, "bob")
    (tmp_path / "keys").write_bytes(b"# team\n\n" + other.read_bytes() + b"\n" + public.read_bytes() + b"\n")
    assert pull(tmp_path / "mine", str(remote), require_signature=tmp_path / "keys").files
    with pytest.raises(RemoteError, match="signed by"):
        pull(tmp_path / "mine", str(remote), require_signature=other)


@pytest.mark.parametrize(
    "line",
    [
        b'cert-authority,principals="x" %s',
        b'command="sh" %s',
        b"%s\nssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAgQ== x",
        b"",
        b"# %s",
        b"nonsense",
    ],
)
def test_key_files_with_anything_else_are_refused(
    signed: tuple[Path, Path], tmp_path: Path, line: bytes
) -> None:
    remote, public = signed
    (tmp_path / "keys").write_bytes(line % public.read_bytes() if b"%s" in line else line)
    with pytest.raises(InputError, match="ed25519"):
        pull(tmp_path / "mine", str(remote), require_signature=tmp_path / "keys")
    with pytest.raises(InputError, match="ed25519"):
        pull(tmp_path / "mine", str(remote), require_signature=tmp_path / "ann")
    with pytest.raises(InputError, match="cannot be read"):
        pull(tmp_path / "mine", str(remote), require_signature=tmp_path / "none")


def test_a_public_key_does_not_sign(signed: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="private"):
        push(tmp_path / "ann-cache", str(tmp_path / "new"), sign=signed[1])
    assert not (tmp_path / "new").exists()


def test_a_digest_of_a_manifest_is_of_its_bytes(honest: Path) -> None:
    (path,) = (honest / "manifests").iterdir()
    assert hashlib.sha256(path.read_bytes()).hexdigest() == digests_of(honest)[0]


def test_a_view_without_its_files_does_not_enter_beside_a_good_corpus(remote: Path) -> None:
    pull(remote.parent / "cache", str(remote))
    before = content(remote.parent / "cache")
    manifest = the_manifest(remote)
    path = "corpora/corpus/views/evil/recipe.json"
    junk = {"path": path, "sha256": put_object(remote, b"junk"), "bytes": 4}
    put_manifest(remote, {**manifest, "files": [*manifest["files"], junk]})
    with pytest.raises(RemoteError, match="refused"):
        pull(remote.parent / "cache", str(remote))
    assert content(remote.parent / "cache") == before


@pytest.mark.parametrize("left_out", ["corpus.json", ".arrow"])
def test_a_corpus_without_a_file_does_not_enter(remote: Path, left_out: str) -> None:
    manifest = the_manifest(remote)
    of_corpus = [one for one in manifest["files"] if one["path"].startswith("corpora/corpus/")]
    dropped = next(one for one in of_corpus if one["path"].endswith(left_out) and "view" not in one["path"])
    put_manifest(remote, {**manifest, "files": [one for one in manifest["files"] if one is not dropped]})
    refused(remote, "refused")
