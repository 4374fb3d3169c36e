"""The charts of a report, each an SVG that takes its colours from the page around it."""
