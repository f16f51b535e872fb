"""Topics: where they are, and changes to them."""
