"""The command line: one file per command, and what is printed in a terminal."""
