"""The JSON bodies of requests and answers, by who uses them."""
