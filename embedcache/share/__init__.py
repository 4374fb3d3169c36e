"""Sharing caches: remotes, push and pull."""

from embedcache.share.check_remote import Fault, RemoteCheck, check_remote
from embedcache.share.collect import CollectResult, Deletion, collect_remote
from embedcache.share.difference import DifferenceLine, RemoteDifference, compare_with_remote
from embedcache.share.listing import (
    RemoteListing,
    RemotePush,
    RemoteTeacher,
    list_remote,
)
from embedcache.share.pull import PullResult, preview_pull, pull
from embedcache.share.pulling.choice import PullChoice
from embedcache.share.pulling.outcome import PulledPart, PullEstimate, TakenVectors
from embedcache.share.pulling.sample_check import SampleCheck
from embedcache.share.push import PushResult, push
from embedcache.share.pushing.selection import PushChoice
from embedcache.share.remote.manifest import CorpusLine
from embedcache.share.remotes import add_remote, list_remotes, remove_remote
from embedcache.share.sync import SyncResult, sync

__all__ = [
    "CollectResult",
    "CorpusLine",
    "Deletion",
    "DifferenceLine",
    "Fault",
    "PullChoice",
    "PullEstimate",
    "PullResult",
    "PulledPart",
    "PushChoice",
    "PushResult",
    "RemoteCheck",
    "RemoteDifference",
    "RemoteListing",
    "RemotePush",
    "RemoteTeacher",
    "SampleCheck",
    "SyncResult",
    "TakenVectors",
    "add_remote",
    "check_remote",
    "collect_remote",
    "compare_with_remote",
    "list_remote",
    "list_remotes",
    "preview_pull",
    "pull",
    "push",
    "remove_remote",
    "sync",
]
