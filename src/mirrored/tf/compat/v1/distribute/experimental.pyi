"""Type stub of `tf.compat.v1.distribute.experimental`, written by tools/tf_stubs.py."""

from mirrored.tf.distribute.experimental import CollectiveCommunication as CollectiveCommunication
from mirrored.tf.distribute.experimental import CollectiveCommunication as _CollectiveCommunication
from mirrored.tf.distribute.experimental import CollectiveHints as CollectiveHints
from mirrored.tf.distribute.experimental import CommunicationOptions as CommunicationOptions
from mirrored.tf.distribute.experimental import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from mirrored.tf.distribute.experimental import ValueContext as ValueContext

CommunicationImplementation = _CollectiveCommunication
