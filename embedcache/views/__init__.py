"""Views: other texts for the rows of a corpus."""
