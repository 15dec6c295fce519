"""Type stub of `tf.compat.v1.distribute`, written by tools/tf_stubs.py."""

from mirrored.tf._distribute.v1 import MirroredStrategy as MirroredStrategy
from mirrored.tf._distribute.v1 import OneDeviceStrategy as OneDeviceStrategy
from mirrored.tf.compat.v1.distribute import cluster_resolver as cluster_resolver
from mirrored.tf.compat.v1.distribute import experimental as experimental
from mirrored.tf.distribute import CrossDeviceOps as CrossDeviceOps
from mirrored.tf.distribute import DistributedValues as DistributedValues
from mirrored.tf.distribute import HierarchicalCopyAllReduce as HierarchicalCopyAllReduce
from mirrored.tf.distribute import InputContext as InputContext
from mirrored.tf.distribute import InputReplicationMode as InputReplicationMode
from mirrored.tf.distribute import NcclAllReduce as NcclAllReduce
from mirrored.tf.distribute import ReduceOp as ReduceOp
from mirrored.tf.distribute import ReductionToOneDevice as ReductionToOneDevice
from mirrored.tf.distribute import ReplicaContext as ReplicaContext
from mirrored.tf.distribute import RunOptions as RunOptions
from mirrored.tf.distribute import Strategy as Strategy
from mirrored.tf.distribute import StrategyExtended as StrategyExtended
from mirrored.tf.distribute import experimental_set_strategy as experimental_set_strategy
from mirrored.tf.distribute import get_replica_context as get_replica_context
from mirrored.tf.distribute import get_strategy as get_strategy
from mirrored.tf.distribute import has_strategy as has_strategy
from mirrored.tf.distribute import in_cross_replica_context as in_cross_replica_context
