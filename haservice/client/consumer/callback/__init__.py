"""What happens to pulled messages: the callback, and retries."""
