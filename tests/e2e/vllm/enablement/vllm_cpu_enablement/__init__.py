"""A 'cpu' Triton backend that compiles nothing, and patches for vLLM's MoE path on a CPU.

TRITON_INTERPRET=1 runs the kernels in numpy.
"""
