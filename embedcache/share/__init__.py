"""Sharing caches over remotes: copy missing files, then publish a manifest."""

from embedcache.share.care import collect, drop, list_remote, verify_remote
from embedcache.share.files import Selection
from embedcache.share.location import add_remote, list_remotes, remove_remote
from embedcache.share.pull import PullResult, pull
from embedcache.share.push import PushResult, push

__all__ = [
    "PullResult",
    "PushResult",
    "Selection",
    "add_remote",
    "collect",
    "drop",
    "list_remote",
    "list_remotes",
    "pull",
    "push",
    "remove_remote",
    "verify_remote",
]
