"""What a push reads of its cache: what was found right before is not read again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from share_helpers import TEXTS, make_cache

from embedcache.check.progress import CheckProgress
from embedcache.share import push
from embedcache.share.pushing import selection


@pytest.mark.parametrize("store", ["arrow", "lmdb"])
def test_shards_that_were_found_right_before_are_not_checked_again(tmp_path: Path, store: str) -> None:
    cache = make_cache(tmp_path / "cache", store=store)
    push(cache, str(tmp_path / "team"))
    make_cache(tmp_path / "cache", ["something new"], store=store, name="new")
    seen: list[CheckProgress] = []
    done = push(tmp_path / "cache", str(tmp_path / "team"), on_progress=seen.append)
    assert done.manifest
    last = [each for each in seen if each.phase == "check"][-1]
    # The documents and the texts: the teacher's contract and name, the corpus and its one part.
    assert (last.files, last.total_files) == (4, 4)
    assert last.total_bytes < sum(len(text) for text in TEXTS) * 3


def test_a_file_whose_digest_was_just_taken_is_not_read_again_unless_it_changes(tmp_path: Path) -> None:
    cache = make_cache(tmp_path / "cache", TEXTS[:10])
    (tmp_path / "cache" / "table").write_bytes(b"table")
    local = selection._mapped(cache, "table")
    assert local.object.is_checked()
    os.utime(tmp_path / "cache" / "table", (1, 1))
    assert not local.object.is_checked()
