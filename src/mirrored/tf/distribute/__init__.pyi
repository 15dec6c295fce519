"""Type stub of `tf.distribute`, written by tools/tf_stubs.py."""

from mirrored import DistributedValues as DistributedValues
from mirrored import InputContext as InputContext
from mirrored import InputOptions as InputOptions
from mirrored import InputReplicationMode as InputReplicationMode
from mirrored import MirroredStrategy as MirroredStrategy
from mirrored import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from mirrored import OneDeviceStrategy as OneDeviceStrategy
from mirrored import ReduceOp as ReduceOp
from mirrored import ReplicaContext as ReplicaContext
from mirrored import Strategy as Strategy
from mirrored import experimental_set_strategy as experimental_set_strategy
from mirrored import get_replica_context as get_replica_context
from mirrored import get_strategy as get_strategy
from mirrored import has_strategy as has_strategy
from mirrored import in_cross_replica_context as in_cross_replica_context
from mirrored.collectives import CrossDeviceOps as CrossDeviceOps
from mirrored.data import DistributedDataset as DistributedDataset
from mirrored.data import DistributedIterator as DistributedIterator
from mirrored.strategies import StrategyExtended as StrategyExtended
from mirrored.tf._distribute.cross_device import HierarchicalCopyAllReduce as HierarchicalCopyAllReduce
from mirrored.tf._distribute.cross_device import NcclAllReduce as NcclAllReduce
from mirrored.tf._distribute.cross_device import ReductionToOneDevice as ReductionToOneDevice
from mirrored.tf._distribute.names import RunOptions as RunOptions
from mirrored.tf.distribute import cluster_resolver as cluster_resolver
from mirrored.tf.distribute import experimental as experimental
