"""Several algorithms or recipes, several seeds each, and which differences are beyond luck."""
