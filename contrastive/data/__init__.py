"""Pairs from readers to batches: sources, transforms, tokenizers and the loader on grain."""
