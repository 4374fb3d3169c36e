"""Training data: rows, targets, order and batches."""
