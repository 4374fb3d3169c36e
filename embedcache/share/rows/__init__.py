"""Rows of a remote's shards: row indexes, and single vectors read by range."""
