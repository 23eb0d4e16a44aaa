"""Training while one looks: a trial is asked for on a page, and trained by a process of its own."""
