"""Consumers: push and pull, and the pure cores below them."""
