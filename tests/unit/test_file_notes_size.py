"""Notes on checked files are still read when a cache has very many shards."""

from pathlib import Path

from embedcache.fsio import file_state, write_sealed_json
from embedcache.store.digests import FileNotes


def test_notes_on_very_many_files_are_still_known(tmp_path: Path) -> None:
    shard = tmp_path / "shard.arrow"
    shard.write_bytes(b"vectors")
    note = tmp_path / "checked.json"
    states = {f"{number:064x}.arrow": file_state(shard) for number in range(60_000)}
    write_sealed_json(note, {**states, shard.name: file_state(shard)})
    assert note.stat().st_size > 4 << 20

    assert FileNotes(note).knows(shard)
