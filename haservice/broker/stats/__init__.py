"""What a broker counts."""
