"""Looking: what a step shows of itself, read without changing it."""
