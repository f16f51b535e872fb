"""A broker: takes messages, serves them, and keeps a slave level with its master."""
