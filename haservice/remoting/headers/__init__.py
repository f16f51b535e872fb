"""The ext fields of requests and answers, by who uses them."""
