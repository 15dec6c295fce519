"""Type stub of `tf.distribute.experimental`, written by tools/tf_stubs.py."""

from mirrored.strategies import ValueContext as ValueContext
from mirrored.tf._distribute.multi_worker import MultiWorkerMirroredStrategy as MultiWorkerMirroredStrategy
from mirrored.tf._distribute.names import CommunicationImplementation as _CommunicationImplementation
from mirrored.tf._distribute.names import CommunicationOptions as CommunicationOptions

def CollectiveHints(bytes_per_pack: int = 0, timeout_seconds: float | None = None) -> CommunicationOptions: ...

CollectiveCommunication = _CommunicationImplementation
CommunicationImplementation = CollectiveCommunication
