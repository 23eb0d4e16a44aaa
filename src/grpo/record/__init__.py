"""The record of a run, its checkpoints, metrics, loggers, callbacks and findings."""
