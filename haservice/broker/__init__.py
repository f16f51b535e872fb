"""A broker: accepts messages, serves them, and keeps a slave in sync with its master."""
