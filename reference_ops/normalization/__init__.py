"""Normalisations of rows."""
