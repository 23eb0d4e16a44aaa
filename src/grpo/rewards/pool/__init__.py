"""Worker processes that call reward functions and can be killed."""
