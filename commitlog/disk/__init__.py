"""Files, and all access to the disk."""
