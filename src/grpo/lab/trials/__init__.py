"""Trials: training runs that a reader starts on a page; a separate process trains them."""
