"""Building: read a corpus, find what the cache lacks, and store exactly that."""
