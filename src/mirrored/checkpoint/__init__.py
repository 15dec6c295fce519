"""Checkpoints: save variables, optimizers and data iterators with Orbax; restore them on any number of replicas."""

from mirrored.checkpoint.checkpoint import Checkpoint as Checkpoint
from mirrored.checkpoint.directory import checkpoints_in as checkpoints_in
from mirrored.checkpoint.directory import latest_checkpoint as latest_checkpoint
from mirrored.checkpoint.manager import CheckpointManager as CheckpointManager
from mirrored.checkpoint.manifest import Manifest as Manifest
from mirrored.checkpoint.manifest import read_manifest as read_manifest
from mirrored.checkpoint.matching import RestoreStatus as RestoreStatus
from mirrored.checkpoint.reader import CheckpointReader as CheckpointReader

__all__ = [
    "Checkpoint",
    "CheckpointManager",
    "CheckpointReader",
    "Manifest",
    "RestoreStatus",
    "checkpoints_in",
    "latest_checkpoint",
    "read_manifest",
]
