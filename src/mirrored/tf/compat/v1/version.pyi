"""Type stub of `tf.compat.v1.version`, written by tools/tf_stubs.py."""

COMPILER_VERSION: str
GIT_VERSION: str
VERSION: str
