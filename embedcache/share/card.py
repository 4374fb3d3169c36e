"""Dataset card of a remote on the Hugging Face Hub."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from embedcache.share.hub import CARD
from embedcache.share.manifest import Manifest
from embedcache.share.remote import Remote

_NOTE = "<!-- Written by 'embedcache push'. Delete this line to keep your own text. -->"
_MOST_BYTES = 1 << 20


def write_card(target: Remote, manifests: Sequence[Manifest]) -> None:
    """Write the dataset card of a remote on the hub, unless a user has written another.

    Args:
        target: the remote; others than the hub have no card.
        manifests: those of all pushes, oldest first.
    """
    there = None if target.hub is None else target.stat(CARD)
    if target.hub is None or (there is not None and there.bytes > _MOST_BYTES):
        return
    before = target.read(CARD, _MOST_BYTES)
    card = dataset_card(target.url, manifests, None if before is None else before.decode("utf-8", "replace"))
    if card is not None:
        target.write(CARD, card.encode())


def dataset_card(url: str, manifests: Sequence[Manifest], before: str | None) -> str | None:
    """Return the dataset card of a remote; None where a user has written another.

    Args:
        url: the remote.
        manifests: those of all pushes, oldest first.
        before: the current card; None if there is none.
    """
    if before is not None and _NOTE not in before:
        return None
    corpora = {one.name: one for manifest in manifests for one in manifest.corpora}
    teachers: dict[str, dict[str, Any]] = {}
    for manifest in manifests:
        for one in manifest.teachers:
            row = teachers.setdefault(one.contract, {"rows": 0})
            row |= {"names": one.names, "model": one.model, "licence": one.licence}
            row["rows"] += one.rows
    licences = sorted({one.licence for one in manifests if one.licence})
    facts = {"tags": ["embedcache", "sentence-embeddings", "knowledge-distillation"], "viewer": False}
    lines = [
        "---",
        # JSON is YAML, and escapes what a name may hold.
        *(f"{name}: {json.dumps(value)}" for name, value in facts.items()),
        "---",
        _NOTE,
        "# Cached teacher vectors",
        "",
        "Texts and the vectors of sentence encoders for them, to distil students from without the teachers.",
        "",
        "```bash",
        "pip install embedcache-distill",
        f"embedcache pull {url} --cache ./cache",
        "```",
        "",
        "| teacher | model | vectors pushed | licence of the model | contract |",
        "|---|---|---|---|---|",
        *(
            f"| {_cell(', '.join(row['names']))} | {_cell(row['model'])} | {row['rows']:,} "
            f"| {_cell(row['licence'])} | `{contract[:12]}` |"
            for contract, row in teachers.items()
        ),
        "",
        "| corpus | rows | views |",
        "|---|---|---|",
        *(
            f"| {_cell(one.name)} | {one.rows:,} | {_cell(', '.join(one.views))} |"
            for one in corpora.values()
        ),
        "",
        f"Licence of the texts: {_cell(', '.join(licences)) or 'not stated'}.",
        "",
    ]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())
