"""Functions that explain the algorithm. Only the lab uses them, never a training step."""
