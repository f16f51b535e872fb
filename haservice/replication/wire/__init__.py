"""What goes over an HA link, and what it runs over."""
