"""Bridges to frameworks. They depend on the core, never the reverse."""
