"""Topics: where they are, and how to change them."""
