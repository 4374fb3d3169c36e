"""A first road with nothing but Python: sentences found on the machine, a teacher, a student."""

from distill.demo.harvest import Harvest, harvest_sentences

__all__ = ["Harvest", "harvest_sentences"]
