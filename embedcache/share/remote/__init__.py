"""Remotes: objects and manifests on some place, and how they are read, written, signed and claimed."""
