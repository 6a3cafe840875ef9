"""Softmax: plain, masked, causal and logarithmic."""
