"""What a push needs: what a cache has to share, and what of that is news to a remote."""
