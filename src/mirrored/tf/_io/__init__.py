"""Files, summaries, printed output and profiles."""
