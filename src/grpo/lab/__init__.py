"""The lab: a local web page that shows what happened in a run, live or recorded, down to the token.

It reads run records and calls `grpo.core`; it never writes, and knows nothing of the trainer.
"""
