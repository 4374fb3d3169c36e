"""Pipelines: build, run, finetune, eval and export as the steps of one YAML file."""
