"""What is measured: each section gives figures that `report.py` turns into tables and plots."""
