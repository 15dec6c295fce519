"""One file per contender: each offers jobs, which `serve.py` makes and times."""
