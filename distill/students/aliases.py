"""Short names of models that papers take as students, and the hub ids they stand for."""

from __future__ import annotations

STUDENTS = {
    "bert-tiny": "nreimers/BERT-Tiny_L-2_H-128_A-2",
    "bert-mini": "nreimers/BERT-Mini_L-4_H-256_A-4",
    "bert-small": "nreimers/BERT-Small-L-4_H-512_A-8",
    "bert-base": "google-bert/bert-base-uncased",
    "tinybert-l4": "nreimers/TinyBERT_L-4_H-312_v2",
    "tinybert-l6": "nreimers/TinyBERT_L-6_H-768_v2",
    "minilm-l3": "nreimers/MiniLM-L3-H384-uncased",
    "minilm-l12": "microsoft/MiniLM-L12-H384-uncased",
}
"""The teachers' short names (``embedcache teachers``) can be students as well."""
