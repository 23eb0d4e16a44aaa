"""Worker processes that run reward functions, and can be killed."""
