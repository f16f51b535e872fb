"""Who may be master: rules that hold in all three modes.  Pure; no socket, no file, no clock."""
