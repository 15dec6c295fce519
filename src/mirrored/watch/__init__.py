"""Naming what goes wrong between workers: hangs, differences, exceptions that would leave the others waiting."""

from mirrored.watch.leaving import leave_on_exceptions as leave_on_exceptions

__all__ = ["leave_on_exceptions"]
