"""Files, and what is asked of a disk."""
