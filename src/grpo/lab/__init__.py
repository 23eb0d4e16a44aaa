"""The lab: a local web app that shows a run, live or recorded, down to the token, and explains every
idea of GRPO with the functions that train.

It reads run records and calls the trainer's functions. It writes only temporary files, for trials that readers start.
"""
