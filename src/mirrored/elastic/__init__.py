"""Elastic jobs (`mirrored run --elastic`): training continues in the living processes when workers are lost or join."""

from mirrored.elastic.link import WorkersChanged as WorkersChanged
from mirrored.elastic.session import Session as Session
from mirrored.elastic.session import run as run

__all__ = ["Session", "WorkersChanged", "run"]
