"""Commands of distill."""
