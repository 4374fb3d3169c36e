"""Configurations: strict models, their identity, and the files and options they come from."""
