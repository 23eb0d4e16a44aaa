"""What a run leaves behind: its record, checkpoints, metrics, loggers and findings."""
