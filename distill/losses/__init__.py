"""Losses, and their registry."""
