"""Compiled functions: trace a Python function once per signature, capture its variables, and donate their buffers."""

from mirrored.compilation.function import Function as Function
from mirrored.compilation.function import function as function
