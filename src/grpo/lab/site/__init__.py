"""The lab without a server: a static site, and single files of runs."""
