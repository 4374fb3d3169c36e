"""Mirrors: caches on this machine whose shards come from a remote when they are needed."""
