"""Elastic jobs (`mirrored run --elastic`): training continues in the surviving processes when workers are lost or join.

Why each step counts exactly once: every worker regularly takes a *snapshot*, a copy in host memory of all state after a
step, which includes the position in the data. All workers train in lock-step, so their snapshots of one step are equal,
and a snapshot is complete only when the devices have computed the step. When the workers change, all of them discard
their state, restore the newest complete snapshot that any of them has, and repeat the steps after it, on the same
examples: the global batch and the number of replicas do not depend on the number of workers. The launcher ends a lost
worker's process before training continues, so no process of the old set of workers can write any more.
`docs/design/elastic.md` specifies the protocol.
"""

from mirrored.elastic.link import WorkersChanged as WorkersChanged
from mirrored.elastic.session import Session as Session
from mirrored.elastic.session import run as run

__all__ = ["Session", "WorkersChanged", "run"]
