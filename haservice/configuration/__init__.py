"""Configuration: files and keys, and what nodes are built from."""
