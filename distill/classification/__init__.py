"""Encoders with a classifier on top: how they are taught, scored and distilled."""
