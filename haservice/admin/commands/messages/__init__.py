"""Messages: sent, consumed, looked up, traced."""
