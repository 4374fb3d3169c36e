"""Training: one loop for vectors, triples and labels, with checkpoints."""
