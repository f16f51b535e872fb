"""What goes on beside appends: flushing, retention, looking for damage and mending it."""
