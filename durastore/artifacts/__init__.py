"""Folders kept as snapshots: checkpoints, tokenised data, scripts, under the proofs that samples have."""
