"""Models of Llama's blocks in few kernels, forward and backward: what a GPU trains with, and rollout decodes with.

`weights.py` holds the working copy of the weights, `block.py` one block with its backward pass written out, `head.py`
the output layer, `attention.py` packed groups through flash attention, `kernels.py` the Triton kernels between the
products. A model of other blocks runs as transformers has it.
"""
