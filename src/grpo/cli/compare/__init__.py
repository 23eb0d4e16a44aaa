"""Compares algorithms or recipes over several seeds: which differences are statistically significant."""
