"""Type stub of `tf.version`, written by tools/tf_stubs.py."""

COMPILER_VERSION: str
GIT_VERSION: str
VERSION: str
