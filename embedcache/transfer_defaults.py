"""Settings of transfers that the command line needs before it loads :mod:`embedcache.share`."""

from __future__ import annotations

THREADS = "share"
"""What the names of transfer threads begin with: the command line waits for none of them after Ctrl-C."""

GRACE_HOURS = 168.0
"""What was written to a remote within so many hours is not deleted: a stopped push may be taken up again."""
