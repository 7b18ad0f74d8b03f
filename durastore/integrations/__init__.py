"""Samples in the forms of other tools: exported as their files, and served to them as a backend."""
