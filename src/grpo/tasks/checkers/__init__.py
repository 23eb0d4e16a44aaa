"""Checks of an answer: numbers, formulas, programs."""
