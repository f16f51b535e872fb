"""Changes of roles: shown first, then done while the page watches."""
