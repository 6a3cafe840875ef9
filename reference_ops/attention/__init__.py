"""Attention over all keys, past keys, a window of keys, or a cache."""
