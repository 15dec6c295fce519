"""Reductions over replicas (`ReduceOp`) and the all-reduce algorithms that compute them (`CrossDeviceOps`).

Example:
    >>> from mirrored.collectives import ReduceOp
    >>> ReduceOp("sum") is ReduceOp.SUM
    True
"""

from __future__ import annotations

from mirrored.collectives.cross_device_ops import AllReduce as AllReduce
from mirrored.collectives.cross_device_ops import CrossDeviceOps as CrossDeviceOps
from mirrored.collectives.cross_device_ops import HierarchicalCopyAllReduce as HierarchicalCopyAllReduce
from mirrored.collectives.cross_device_ops import NcclAllReduce as NcclAllReduce
from mirrored.collectives.cross_device_ops import OrderedTree as OrderedTree
from mirrored.collectives.cross_device_ops import ReductionToOneDevice as ReductionToOneDevice
from mirrored.collectives.reduce_op import Adasum as Adasum
from mirrored.collectives.reduce_op import Median as Median
from mirrored.collectives.reduce_op import ReduceOp as ReduceOp
from mirrored.collectives.reduce_op import TrimmedMean as TrimmedMean
from mirrored.collectives.summation import Group as Group

__all__ = [
    "Adasum",
    "AllReduce",
    "CrossDeviceOps",
    "Group",
    "HierarchicalCopyAllReduce",
    "Median",
    "NcclAllReduce",
    "OrderedTree",
    "ReduceOp",
    "ReductionToOneDevice",
    "TrimmedMean",
]
