"""Sweeps: many runs on one cache, ranked by their development score."""
