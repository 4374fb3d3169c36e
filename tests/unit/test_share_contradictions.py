"""Vectors that a pull brings do not take the place of other vectors that were here, without a word."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from share_helpers import TEXTS, cut_short, make_cache

from embedcache.builder import build
from embedcache.cache import Cache
from embedcache.check.live import Computing
from embedcache.check.verify.deep import BAD, OK
from embedcache.cli.main import cli
from embedcache.codecs import get_codec
from embedcache.codecs.quality import measure
from embedcache.errors import InputError
from embedcache.housekeeping import remove_teacher
from embedcache.keys import key_array
from embedcache.sample_notes import SampleNotes, bad_shards
from embedcache.share import PullChoice, PullResult, pull, push, sync
from embedcache.share.pulling import contradictions, models_at_hand, sample
from embedcache.share.pulling.contradictions import contradiction
from embedcache.share.pulling.sample_check import NOT_COMPARED
from embedcache.share.remote.remote import Remote
from embedcache.share.remotes import location_of
from embedcache.store import FolderShards, VectorBatch
from embedcache.store.shard import ShardHeader, shard_bytes
from embedcache.testing import FakeEncoder, fake_teacher

TEACHER = fake_teacher(8)
ID = TEACHER.contract.id
MINE, OTHERS = TEXTS[:40], TEXTS[40:200]

Change = Callable[[Any], Any]


class _Changed(FakeEncoder):
    """Says that it is the teacher, and changes its vectors."""

    def __init__(self, change: Change) -> None:
        super().__init__(TEACHER)
        self.change = change

    @property
    def provenance(self) -> dict[str, object]:
        return {"compute_dtype": "float32"}

    def encode(self, texts: Sequence[str]) -> Any:
        encoded = super().encode(texts)
        return type(encoded)(self.change(encoded.vectors), encoded.tokens, encoded.truncated)


class _Live(FakeEncoder):
    """A live teacher that costs nothing."""

    batch_tokens = 100

    @property
    def provenance(self) -> dict[str, object]:
        return {"compute_dtype": "float32"}


def other(vectors: Any) -> Any:
    """Return other vectors altogether."""
    return np.ascontiguousarray(vectors[:, ::-1])


def same(vectors: Any) -> Any:
    return vectors


def turned(angle: float) -> Change:
    """Return what turns vectors by so much."""

    def change(vectors: Any) -> Any:
        aside = np.roll(vectors, 1, axis=1)
        aside -= vectors * (aside * vectors).sum(axis=1, keepdims=True)
        aside /= np.linalg.norm(aside, axis=1, keepdims=True)
        return (np.cos(angle) * vectors + np.sin(angle) * aside).astype(np.float32)

    return change


@pytest.fixture
def team(tmp_path: Path) -> str:
    return str(tmp_path / "team")


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model be at hand."""
    monkeypatch.setattr(Computing, "encoder", lambda self, contract, **_: _Live(TEACHER))
    monkeypatch.setattr(models_at_hand, "is_at_hand", lambda spec: True)


def theirs(folder: Path, texts: Sequence[str], change: Change, **settings: Any) -> Cache:
    """Build somebody else's cache."""
    source = folder.parent / f"{folder.name}.txt"
    source.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    settings = {"name": folder.name, "shard_rows": 1000, "codec": "float32", **settings}
    return build(source, teacher=TEACHER, encoder=_Changed(change), cache=folder, **settings)


def shards_of(cache: Path) -> frozenset[str]:
    return frozenset(Cache(cache).container(TEACHER.contract).names())


def verdicts(done: PullResult) -> list[str]:
    return [check.verdict for check in done.samples]


def notes_on(cache: Path, remote: str) -> SampleNotes:
    return SampleNotes(Cache(cache), Remote(location_of(remote)).id)


def make_mine(tmp_path: Path, **settings: Any) -> Path:
    return make_cache(tmp_path / "mine", MINE, name="mine", **settings).folder


# What is found


@pytest.mark.parametrize("codec", ["float32", "float16", "int8"])
@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_what_contradicts_ones_own_vectors_is_bad_though_the_model_is_not_here(
    tmp_path: Path, team: str, codec: str, store: str
) -> None:
    mine = make_mine(tmp_path, codec="float16", store=store)
    own = shards_of(mine)
    pushed = push(theirs(tmp_path / "theirs", [*MINE, *OTHERS], other, codec=codec), team).manifest[:12]
    result = CliRunner().invoke(cli, ["pull", team, "--cache", str(mine)])
    assert result.exit_code == 1
    told = " ".join(result.output.split())
    listed = f"which manifest {pushed} lists"
    assert f"bad; 1 shard of what came, {listed}, contradicts the vectors that were here before: " in told
    assert "40 of 40 rows that both have and that were compared differ beyond noise, the lowest" in told
    assert bad_shards(Cache(mine), ID) == shards_of(mine) - own
    # It stays so, and goes nowhere.
    (still,) = pull(mine, team).samples
    assert still.verdict == BAD
    assert f"in 1 shard still here, {listed}; " in still.told
    done = sync(mine, team)
    assert (verdicts(done.pulled) if done.pulled else [], done.pushed) == ([BAD], None)
    with pytest.raises(InputError, match="nothing was sent"):
        push(mine, str(tmp_path / "elsewhere"))
    # Until somebody decides.
    pull(mine, team, sample_check=False)
    assert verdicts(pull(mine, team)) == []


def test_what_is_the_same_but_for_noise_passes(tmp_path: Path, team: str) -> None:
    mine = make_mine(tmp_path, codec="float16")
    push(theirs(tmp_path / "exact", MINE, same), team)
    push(theirs(tmp_path / "near", MINE, turned(0.001)), team)
    push(theirs(tmp_path / "coarse", MINE, same, codec="int8"), team)
    assert verdicts(pull(mine, team)) == [NOT_COMPARED]
    assert bad_shards(Cache(mine), ID) == frozenset()
    push(theirs(tmp_path / "far", MINE, turned(0.02)), team)
    assert verdicts(pull(mine, team)) == [BAD]


def test_a_header_is_believed_only_as_far_as_its_codec_can_lose(tmp_path: Path, team: str) -> None:
    mine = make_mine(tmp_path, codec="float16")
    liar = Cache.create(tmp_path / "liar")
    liar.register_teacher("fake", TEACHER.contract, {})
    encoded = _Changed(other).encode(MINE)
    codec = get_codec("float32")
    stored = codec.encode(encoded.vectors)
    error = {**measure(codec, encoded.vectors, stored).to_json(), "worst_cosine": -1.0}
    provenance = {"compute_dtype": "anything"}
    header = ShardHeader(TEACHER.contract, "float32", None, len(MINE), provenance, error)
    keys = key_array(MINE)
    liar.store(TEACHER.contract).put_raw(
        *shard_bytes(header, codec, keys, stored, encoded.tokens, encoded.truncated)
    )
    push(liar, team)
    assert verdicts(pull(mine, team)) == [BAD]


def test_a_few_wrong_rows_that_the_sample_misses_are_found(tmp_path: Path, team: str, live: None) -> None:
    mine = make_mine(tmp_path, codec="float16")

    def change(vectors: Any) -> Any:
        return np.concatenate([other(vectors[:2]), vectors[2:]])

    # Vectors of many texts are right, and those two are of no corpus here.
    remove = Cache(mine).corpora_folder / "mine"
    shutil.rmtree(remove)
    push(theirs(tmp_path / "theirs", [*MINE, *OTHERS], change), team)
    done = pull(mine, team, PullChoice(text=False))
    assert verdicts(done) == [BAD]
    assert "2 of 40 rows that both have" in done.samples[0].told


def test_the_model_that_is_here_compares_what_contradicts_nothing(
    tmp_path: Path, team: str, live: None
) -> None:
    mine = make_mine(tmp_path, codec="float16")
    push(theirs(tmp_path / "evil", MINE, other), team)
    push(theirs(tmp_path / "honest", OTHERS, same), team)
    first, second = pull(mine, team).samples
    assert (first.verdict, first.sampled) == (BAD, 0)
    assert (second.verdict, second.sampled) == (OK, sample.SAMPLE)
    assert second.told == "but for the bad shards, the stored vectors are the teacher's"
    (told,) = pull(mine, team).samples
    assert "in 1 shard still here, which manifest " in told.told


def test_of_a_shard_so_many_rows_are_compared_and_nobody_knows_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contradictions, "MOST_ROWS", 20)
    mine = Cache(make_mine(tmp_path, codec="float16"))
    own = mine.container(TEACHER.contract).names()
    # Each key stands in it many times, the right vectors first.
    encoded = _Changed(same).encode(MINE)
    keys, again = key_array(MINE), np.repeat(np.arange(len(MINE)), 100)
    vectors = encoded.vectors.copy()
    vectors[30:] = other(vectors[30:])
    store = mine.store(TEACHER.contract)
    store.put(VectorBatch(keys[again], vectors[again], encoded.tokens[again], encoded.truncated[again]))
    (came,) = shards_of(mine.folder) - set(own)
    counts = set()
    for seed in range(10):
        found = contradiction(mine, TEACHER.contract, [came], own, seed)
        assert found == contradiction(mine, TEACHER.contract, [came], own, seed)
        assert found.compared == 20
        counts.add(found.differ)
    assert len(counts) > 1


def test_the_number_that_chooses_rows_is_of_this_folder(tmp_path: Path, team: str) -> None:
    mine = make_mine(tmp_path)
    push(theirs(tmp_path / "theirs", OTHERS, same), team)
    pull(mine, team)
    number = notes_on(mine, team).secret_number()
    assert number == notes_on(mine, team).secret_number()
    shutil.copytree(mine, tmp_path / "copy")
    assert notes_on(tmp_path / "copy", team).secret_number() != number


# What it is compared with


def test_what_was_merged_in_or_pushed_since_is_ones_own(tmp_path: Path, team: str) -> None:
    mine = tmp_path / "mine"
    push(theirs(tmp_path / "first", OTHERS, same), team)
    # From now on something is to be compared, and the model is not here.
    assert verdicts(pull(mine, team)) == [NOT_COMPARED]
    make_cache(mine, MINE, name="mine")
    own = shards_of(mine) - shards_of(tmp_path / "first")
    push(mine, team)
    push(theirs(tmp_path / "theirs", MINE, other), team)
    assert BAD in verdicts(pull(mine, team))
    assert bad_shards(Cache(mine), ID) == shards_of(tmp_path / "theirs")
    assert not own & bad_shards(Cache(mine), ID)
    # What was found sound is noted where all readers look.
    assert list(mine.rglob("checked.*")) == [mine / "derived" / "index" / ID / "checked.bin"]


@pytest.mark.parametrize("lost", ["never there", "copied"])
def test_ones_own_are_ones_own_though_the_remote_has_them_and_no_note_says_so(
    tmp_path: Path, team: str, lost: str
) -> None:
    mine = make_mine(tmp_path, codec="float16")
    own = shards_of(mine)
    if lost == "copied":
        push(mine, team)
        pull(mine, team)
    else:
        # The same texts make the same shards elsewhere.
        push(make_cache(tmp_path / "again", MINE, name="mine", codec="float16"), team)
    shutil.copytree(mine, tmp_path / "copy")
    push(theirs(tmp_path / "theirs", MINE, other), team)
    assert BAD in verdicts(pull(tmp_path / "copy", team))
    assert bad_shards(Cache(tmp_path / "copy"), ID) == shards_of(tmp_path / "theirs")
    assert not own & shards_of(tmp_path / "theirs")


def test_what_was_built_since_the_last_pull_is_ones_own_though_others_pushed_the_same(
    tmp_path: Path, team: str
) -> None:
    mine = tmp_path / "mine"
    push(theirs(tmp_path / "first", OTHERS, same), team)
    pull(mine, team)
    make_cache(mine, MINE, name="mine")
    push(make_cache(tmp_path / "again", MINE, name="mine", codec="float32"), team)
    push(theirs(tmp_path / "theirs", MINE, other), team)
    assert BAD in verdicts(pull(mine, team))
    assert bad_shards(Cache(mine), ID) == shards_of(tmp_path / "theirs")


def test_what_came_first_is_compared_with_what_comes_later(tmp_path: Path, team: str) -> None:
    there = tmp_path / "there"
    push(theirs(tmp_path / "honest", MINE, same, codec="float16"), team)
    assert verdicts(pull(there, team)) == [NOT_COMPARED]
    push(theirs(tmp_path / "evil", MINE, other), team)
    assert BAD in verdicts(pull(there, team))
    assert bad_shards(Cache(there), ID) == shards_of(tmp_path / "evil")


def test_what_a_pull_that_was_killed_had_brought_is_compared_by_the_next(tmp_path: Path, team: str) -> None:
    mine = make_mine(tmp_path, codec="float16")
    push(theirs(tmp_path / "evil", MINE, other), team)
    with cut_short():
        pull(mine, team)
    push(theirs(tmp_path / "honest", MINE, same), team)
    assert BAD in verdicts(pull(mine, team))
    # What contradicts one's own vectors is nothing to compare others with.
    assert bad_shards(Cache(mine), ID) == shards_of(tmp_path / "evil")


def test_what_another_remote_brought_and_was_bad_is_nothing_to_compare_with(
    tmp_path: Path, team: str, live: None
) -> None:
    there, others = tmp_path / "there", str(tmp_path / "others")
    push(theirs(tmp_path / "evil", MINE, other), others)
    assert verdicts(pull(there, others)) == [BAD]
    push(theirs(tmp_path / "honest", [*MINE, *OTHERS], same), team)
    assert BAD not in verdicts(pull(there, team))
    assert bad_shards(Cache(there), ID) == shards_of(tmp_path / "evil")


def test_what_a_build_adds_while_a_pull_goes_on_is_not_what_came(
    tmp_path: Path, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = make_mine(tmp_path, codec="float16")
    push(theirs(tmp_path / "theirs", OTHERS, same), team)
    built = theirs(tmp_path / "built", MINE, other)
    begin = sample.ArrivalSamples.compare

    def build_meanwhile(self: Any, *args: Any) -> Any:
        for name in shards_of(built.folder):
            target = Cache(mine).container(TEACHER.contract)
            assert isinstance(target, FolderShards)
            target.add(name, built.container(TEACHER.contract).open(name))
        return begin(self, *args)

    monkeypatch.setattr(sample.ArrivalSamples, "compare", build_meanwhile)
    assert verdicts(pull(mine, team)) == [NOT_COMPARED]
    assert bad_shards(Cache(mine), ID) == frozenset()


def test_what_another_pull_brings_meanwhile_is_left_for_it_to_compare(
    tmp_path: Path, team: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = make_mine(tmp_path, codec="float16")
    push(theirs(tmp_path / "honest", OTHERS, same), team)
    begin = sample.ArrivalSamples.compare

    def pulled_meanwhile(self: Any, *args: Any) -> Any:
        monkeypatch.undo()
        # What was pushed since is nothing that this pull knows of.
        push(theirs(tmp_path / "evil", MINE, other), team)
        with cut_short():
            pull(mine, team)
        return begin(self, *args)

    monkeypatch.setattr(sample.ArrivalSamples, "compare", pulled_meanwhile)
    pull(mine, team)
    assert shards_of(tmp_path / "evil") < shards_of(mine)
    assert BAD in verdicts(pull(mine, team))
    assert bad_shards(Cache(mine), ID) == shards_of(tmp_path / "evil")


def test_without_a_check_nothing_is_compared(tmp_path: Path, team: str) -> None:
    mine = make_mine(tmp_path, codec="float16")
    push(theirs(tmp_path / "theirs", MINE, other), team)
    assert verdicts(pull(mine, team, sample_check=False)) == []
    assert verdicts(pull(mine, team)) == []


def test_once_all_are_gone_the_good_ones_can_come_back(tmp_path: Path, team: str) -> None:
    mine = make_mine(tmp_path, codec="float16")
    evil = push(theirs(tmp_path / "evil", MINE, other), team)
    push(theirs(tmp_path / "honest", MINE, same), team)
    assert BAD in verdicts(pull(mine, team))
    remove_teacher(Cache(mine), "fake")
    assert BAD not in verdicts(pull(mine, team, PullChoice(skip_manifests=[evil.manifest[:12]])))
