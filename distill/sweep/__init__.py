"""Many runs on one cache, and the table of how they ended."""
