"""Reports on runs: one row model, shown as tables, JSON, a page and model cards."""

from distill.report.rows import Row, rows

__all__ = ["Row", "rows"]
