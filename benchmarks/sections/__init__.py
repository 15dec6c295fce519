"""Sections of the benchmarks: each returns figures that `report.py` formats as tables and plots."""
