"""Type stub of `tf.compat.v1.distribute.cluster_resolver`, written by tools/tf_stubs.py."""

from mirrored.tf.distribute.cluster_resolver import ClusterResolver as ClusterResolver
from mirrored.tf.distribute.cluster_resolver import KubernetesClusterResolver as KubernetesClusterResolver
from mirrored.tf.distribute.cluster_resolver import KubernetesExecutableLocation as KubernetesExecutableLocation
from mirrored.tf.distribute.cluster_resolver import SimpleClusterResolver as SimpleClusterResolver
from mirrored.tf.distribute.cluster_resolver import SlurmClusterResolver as SlurmClusterResolver
from mirrored.tf.distribute.cluster_resolver import TFConfigClusterResolver as TFConfigClusterResolver
from mirrored.tf.distribute.cluster_resolver import UnionResolver as UnionResolver
