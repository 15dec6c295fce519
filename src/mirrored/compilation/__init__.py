"""Compiled functions: trace a Python function once per signature, capture its variables, and donate their buffers."""

from mirrored.compilation.function import Function as Function
from mirrored.compilation.function import function as function
from mirrored.compilation.function import functions_run_eagerly as functions_run_eagerly
from mirrored.compilation.function import run_functions_eagerly as run_functions_eagerly
