"""Decoding on a GPU: CUDA graphs over fused kernels."""
