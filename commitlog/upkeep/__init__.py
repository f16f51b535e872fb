"""Work beside appends: flush, retention, search for damage and its repair."""
