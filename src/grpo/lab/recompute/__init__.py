"""Tokens of a group that were not recorded, recomputed from a checkpoint in a process of their own."""
