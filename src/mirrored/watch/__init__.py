"""Naming what goes wrong between workers: hangs, differences, exceptions that would leave the others waiting."""

from mirrored.watch.leaving import leave_on_exceptions as leave_on_exceptions
from mirrored.watch.roll import roll as roll
from mirrored.watch.watching import watch_workers as watch_workers

__all__ = ["leave_on_exceptions", "roll", "watch_workers"]
