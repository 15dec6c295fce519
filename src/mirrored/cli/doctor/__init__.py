"""`mirrored doctor`: what every worker is, and which host is wrong."""
