"""Models of Llama's blocks in few kernels, forward and backward. A GPU trains with them, and rollout decodes with them.

`weights.py` holds the working copy of the weights, `block.py` one block with its backward pass, `head.py` the output
layer, `attention.py` packed groups through flash attention, `kernels.py` the Triton kernels between the matrix
products. Models of other blocks run through transformers.
"""
