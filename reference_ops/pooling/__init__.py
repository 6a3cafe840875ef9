"""Pooling over windows of signals, images and videos."""
