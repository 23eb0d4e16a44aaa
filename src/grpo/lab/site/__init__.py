"""The lab without a server: a static site (`grpo lab build`) and one run as one file (`grpo lab export`)."""
