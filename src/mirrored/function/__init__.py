"""Compiled functions: state captured in one trace, donated, counted."""

from mirrored.function.function import Function as Function
from mirrored.function.function import function as function
from mirrored.function.function import functions_run_eagerly as functions_run_eagerly
from mirrored.function.function import run_functions_eagerly as run_functions_eagerly
