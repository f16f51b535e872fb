"""One module per family of requests."""
