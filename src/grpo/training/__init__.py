"""One run from config to weights: the loop and its steps."""
