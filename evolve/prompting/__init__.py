"""Prompts for language models, made from requests by pure functions."""
