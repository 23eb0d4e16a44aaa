"""Sampling: groups of completions from problems."""
