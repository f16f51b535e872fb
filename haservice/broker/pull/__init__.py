"""Pulling: which messages answer a consumer, and their bytes."""
