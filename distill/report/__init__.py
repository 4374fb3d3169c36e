"""Reports on finished runs: data collected once, shown as a page, as Markdown or as JSON."""

from distill.report.collect import collect_report
from distill.report.data import Report

__all__ = ["Report", "collect_report"]
