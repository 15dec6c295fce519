"""Correctness and speed on one GPU, in one command: `benchmarks/gpu/run.sh`."""
