"""The lab: a local web page that shows what happened in a run, live or recorded, down to the token, and explains every
idea of GRPO with the functions that train.

It reads run records and calls the engine; it writes nothing but the trials people start, in folders that pass away.
"""
