"""The ext fields of requests and answers, grouped by user."""
