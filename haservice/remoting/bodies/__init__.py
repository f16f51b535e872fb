"""The JSON bodies of requests and answers, grouped by user."""
