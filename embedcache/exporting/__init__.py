"""Exporting: rows of a corpus with their vectors, as files that other programs read."""
