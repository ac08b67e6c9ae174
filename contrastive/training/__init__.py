"""Training: state, step, loop, optimizer, checkpoints. Everything below knows nothing of it."""
