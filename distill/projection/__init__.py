"""Teachers' vectors mapped to a student's width, so that rows of one label lie together (ReAugKD, step 1)."""

from __future__ import annotations

from distill.projection.project import Projection, extend_projection, project

__all__ = ["Projection", "extend_projection", "project"]
