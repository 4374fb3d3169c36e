"""From a corpus to a shipped student in one file of steps."""
