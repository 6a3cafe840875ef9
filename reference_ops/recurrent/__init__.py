"""Recurrent networks: single steps and whole sequences."""
