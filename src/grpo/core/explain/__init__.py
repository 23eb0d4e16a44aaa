"""Functions that explain the algorithm. Only the lab uses them; no training step does."""
