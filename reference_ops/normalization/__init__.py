"""Normalisation of rows and of images."""
