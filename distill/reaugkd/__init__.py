"""Classifiers distilled from a teacher, and retrieval from a knowledge base (ReAugKD)."""
