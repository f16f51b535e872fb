"""What goes over an HA link, and what the link runs over."""
