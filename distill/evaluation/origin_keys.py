"""Keys of the marks in a model's report: contamination, and what its checkpoint was chosen on."""

CONTAMINATION = "contamination"
"""Set -> what of it is among the training texts; null where that is not known."""

TRAINED_ON = "trained_on"
"""The training texts that were looked at: name and number."""

SELECTED_ON = "selected_on"
"""The test sets of which pairs chose the checkpoint: set, file, number of pairs, and of how many."""

MUCH = 0.1
"""Share of a set's pairs from which on choosing a checkpoint by them makes its figure worthless."""
