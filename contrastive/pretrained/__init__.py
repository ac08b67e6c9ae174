"""Weights of other libraries, read and written."""
