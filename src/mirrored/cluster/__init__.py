"""Multi-worker training: cluster resolvers, joining of the workers, and `MultiWorkerMirroredStrategy`."""

from mirrored.cluster.kubernetes import ExecutableLocation as ExecutableLocation
from mirrored.cluster.kubernetes import KubernetesClusterResolver as KubernetesClusterResolver
from mirrored.cluster.rendezvous import wait_for_coordinator as wait_for_coordinator
from mirrored.cluster.resolver import ClusterResolver as ClusterResolver
from mirrored.cluster.simple import SimpleClusterResolver as SimpleClusterResolver
from mirrored.cluster.simple import UnionResolver as UnionResolver
from mirrored.cluster.slurm import SlurmClusterResolver as SlurmClusterResolver
from mirrored.cluster.spec import ClusterDef as ClusterDef
from mirrored.cluster.spec import ClusterSpec as ClusterSpec
from mirrored.cluster.spec import JobDef as JobDef
from mirrored.cluster.strategy import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from mirrored.cluster.tasks import Process as Process
from mirrored.cluster.tasks import process_of as process_of
from mirrored.cluster.tf_config import TFConfigClusterResolver as TFConfigClusterResolver

__all__ = [
    "ClusterDef",
    "ClusterResolver",
    "ClusterSpec",
    "ExecutableLocation",
    "JobDef",
    "KubernetesClusterResolver",
    "MultiWorkerMirroredStrategy",
    "Process",
    "SimpleClusterResolver",
    "SlurmClusterResolver",
    "TFConfigClusterResolver",
    "UnionResolver",
    "process_of",
    "wait_for_coordinator",
]
