"""Prompts for language models: pure text, made from a request."""
