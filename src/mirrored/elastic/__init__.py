"""Elastic jobs: training continues when workers are lost or join, in the living processes (`mirrored run --elastic`)."""

from mirrored.elastic.link import WorkersChanged as WorkersChanged
from mirrored.elastic.session import Session as Session
from mirrored.elastic.session import run as run

__all__ = ["Session", "WorkersChanged", "run"]
