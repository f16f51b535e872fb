"""What becomes of messages that were pulled: the callback, and retries."""
