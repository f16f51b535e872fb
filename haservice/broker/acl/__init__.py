"""Access control: who may do what."""
