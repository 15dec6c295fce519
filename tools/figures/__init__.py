"""Draws the figures of the documentation: boxes, arrows and text from TOML files, as SVG."""
