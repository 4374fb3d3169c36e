"""Corpora: reading files into immutable parts, and reading them back."""
