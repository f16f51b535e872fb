"""Who is let in: login, sessions, and what a browser may send."""
