"""Naming what goes wrong between workers: hangs, differences, exceptions that would leave the others waiting."""

from mirrored.watchdog.collective_log import roll as roll
from mirrored.watchdog.fail_fast_exit import leave_on_exceptions as leave_on_exceptions
from mirrored.watchdog.monitor import watch_workers as watch_workers

__all__ = ["leave_on_exceptions", "roll", "watch_workers"]
