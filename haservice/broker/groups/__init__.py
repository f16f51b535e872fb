"""Consumer groups: their members, their offsets, their locks, and what tools ask of them."""
