"""The parts of a push: which files a cache has to share, and which of them a remote lacks."""
