"""Starting a program on several processes and machines: what `mirrored run` does."""

from mirrored.launch.detection import Place as Place
from mirrored.launch.detection import detect as detect
from mirrored.launch.job import Job as Job
from mirrored.launch.running import run_job as run_job

__all__ = ["Job", "Place", "detect", "run_job"]
