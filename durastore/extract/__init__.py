"""Running a model over an input file and putting its hidden states into a store."""
