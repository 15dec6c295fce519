"""Detects deadlocks, mismatched collectives and lost workers of a job, and then ends the job with a report."""

from mirrored.watchdog.collective_log import collective_log as collective_log
from mirrored.watchdog.fail_fast_exit import install_fail_fast as install_fail_fast
from mirrored.watchdog.monitor import start_watchdog as start_watchdog

__all__ = ["collective_log", "install_fail_fast", "start_watchdog"]
