"""Many processes that share by one remote at once."""

from __future__ import annotations

from pathlib import Path

from sharing import assert_objects_whole, content, make_cache, objects_of, start

from embedcache.share import list_remote, pull, verify_remote
from embedcache.testing import sentences
from embedcache.verify import verify

TEXTS = sentences(64 * 12, seed=4)


def test_eight_push_at_once_and_a_ninth_pulls(place: tuple[str, Path], tmp_path: Path) -> None:
    url, folder = f"{place[0]}/remote", place[1] / "remote"
    caches = []
    for number in range(8):
        # Windows that overlap in whole shards with those of their neighbours.
        window = (TEXTS * 2)[64 * number :][: 64 * 5]
        caches.append(make_cache(tmp_path / f"c{number}", window, name=f"n{number}", shard_rows=64).folder)
    union = {path: sha256 for cache in caches for path, sha256 in content(cache).items()}
    objects = [objects_of(cache) for cache in caches]
    wanted = set().union(*objects)
    assert sum(map(len, objects)) > 2 * len(wanted)

    def round_of_pushes(number: int) -> list[int]:
        go, reports = tmp_path / f"go{number}", [tmp_path / f"sent{number}-{one}" for one in range(8)]
        children = [
            start("push", cache, url, at=go, report=report)
            for cache, report in zip(caches, reports, strict=True)
        ]
        go.touch()
        while any(child.is_alive() for child in children):
            if folder.is_dir() and list(folder.glob("manifests/*.json")):
                # What a reader sees meanwhile is whole.
                pull(tmp_path / "ninth", url)
            children[0].join(0.1)
        for child in children:
            child.join(120)
        assert [child.exitcode for child in children] == [0] * 8
        return [int(report.read_text()) for report in reports]

    sent = round_of_pushes(1)
    assert sum(sent) >= len(wanted)
    assert sum(sent) < sum(map(len, objects))
    assert assert_objects_whole(folder) == wanted
    assert verify_remote(url).is_sound
    assert round_of_pushes(2) == [0] * 8
    assert len(list_remote(url)) <= 8
    pull(tmp_path / "ninth", url)
    assert content(tmp_path / "ninth") == union
    assert not verify(tmp_path / "ninth").findings
    print(f"\n{url.split(':')[0]}: {len(wanted)} objects, sent {sum(sent)}: {sent}")  # noqa: T201
