"""What a start finds, and what it does about it."""
