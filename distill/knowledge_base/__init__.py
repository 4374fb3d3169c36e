"""The knowledge base beside a student: what its teacher said of texts, to be asked while predicting."""
