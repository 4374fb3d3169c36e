"""What to tell of a comparison of what came, and what to do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from embedcache.check.verify.deep import LEAST_SAMPLE
from embedcache.share.pulling.contradictions import Contradiction
from embedcache.share.remote.lines import shown_manifests
from embedcache.share.remote.manifest import Manifest
from embedcache.sizes import counted


def without_texts(shards: Collection[str], texts: Mapping[str, int]) -> str:
    """Return why shards were not compared.

    Args:
        shards: the shards.
        texts: those that texts here have their vectors from, with the number of these texts.
    """
    if found := sum(texts.get(name, 0) for name in shards):
        return (
            f"{counted(found, 'text')} of {counted(len(shards), 'shard')} here, expected at "
            f"least {LEAST_SAMPLE}: a later pull compares them with what comes then"
        )
    return (
        f"no text here is read from {counted(len(shards), 'shard')}, for their texts are not here, or are "
        "read from other shards: nothing depends on them, and a pull compares them once something does"
    )


def wrong_told(teacher: str, shards: Collection[str], pushed: str) -> str:
    """Return what to tell of shards with other vectors than the teacher's.

    Args:
        teacher: its name.
        shards: the shards.
        pushed: which manifests list them; see :func:`listed_by`.
    """
    return f"other vectors than the teacher's in {counted(len(shards), 'shard')}{pushed}: {remedy(teacher)}"


def contradiction_told(teacher: str, found: Contradiction, pushed: str) -> str:
    """Return what to tell of shards that contradict vectors that were here before.

    Args:
        teacher: the teacher's name.
        found: which shards, and by how much.
        pushed: which manifests list them; see :func:`listed_by`.
    """
    verb = "contradicts" if len(found.shards) == 1 else "contradict"
    return (
        f"{counted(len(found.shards), 'shard')} of what came{pushed}{',' if pushed else ''} {verb} the "
        f"vectors that were here before: {found.differ:,} of {counted(found.compared, 'row')} that both have "
        f"and that were compared differ beyond noise, the lowest cosine is {found.lowest:.4f}; "
        f"{remedy(teacher)}. 'embedcache verify --deep' tells whether those that were here before are right"
    )


def still_bad(teacher: str, shards: int, pushed: str) -> str:
    """Return what to tell of shards that an earlier pull found bad.

    Args:
        teacher: the teacher's name.
        shards: how many are still here.
        pushed: which manifests list them; see :func:`listed_by`.
    """
    return (
        "an earlier pull found other vectors than the teacher's, or than those that were here before, in "
        f"{counted(shards, 'shard')} still here{pushed}; {remedy(teacher)}"
    )


def listed_by(shards: Collection[object], manifests: Iterable[Manifest]) -> str:
    """Return which of a remote's manifests list some shards, as a clause; empty where none does."""
    names = [manifest.id[:12] for manifest in manifests if any(f.sha256 in shards for f in manifest.files)]
    return f", which {shown_manifests(names, 'list')}" if names else ""


def remedy(teacher: str) -> str:
    """Return what to do about bad shards of a teacher."""
    return (
        f"'embedcache rm teacher {teacher} --bad' deletes the bad shards, and a pull with --skip-manifest or "
        "--require-signature does without them; --no-sample-check keeps them. 'embedcache remote gc --drop' "
        "takes a push back for everybody"
    )
