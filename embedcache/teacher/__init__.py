"""Teachers: loading, identity, tokenizing and encoding."""
