"""The launcher (`mirrored run`): starts a program on several processes and machines, supervises and restarts it."""

from mirrored.launcher.detection import MachinePlace as MachinePlace
from mirrored.launcher.detection import detect as detect
from mirrored.launcher.job import Job as Job
from mirrored.launcher.running import run_job as run_job

__all__ = ["Job", "MachinePlace", "detect", "run_job"]
