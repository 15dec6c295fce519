"""Type stub of `tf.compat.v1.logging`, written by tools/tf_stubs.py."""

DEBUG: int
ERROR: int
FATAL: int
INFO: int
WARN: int
debug: method
error: method
fatal: method
info: method
log: method
warn: method
warning: method

def set_verbosity(level: int | str) -> None: ...
