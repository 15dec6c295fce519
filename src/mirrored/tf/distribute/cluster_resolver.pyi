"""Type stub of `tf.distribute.cluster_resolver`, written by tools/tf_stubs.py."""

from mirrored.cluster import ClusterResolver as ClusterResolver
from mirrored.cluster import ExecutableLocation
from mirrored.cluster import KubernetesClusterResolver as KubernetesClusterResolver
from mirrored.cluster import SimpleClusterResolver as SimpleClusterResolver
from mirrored.cluster import SlurmClusterResolver as SlurmClusterResolver
from mirrored.cluster import TFConfigClusterResolver as TFConfigClusterResolver
from mirrored.cluster import UnionResolver as UnionResolver

KubernetesExecutableLocation = ExecutableLocation
