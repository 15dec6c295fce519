"""Type stub of `tf.profiler.experimental`, written by tools/tf_stubs.py."""

from os import PathLike
from typing import Any, SupportsIndex

from mirrored.tf._io.profiler import Profile as Profile
from mirrored.tf._io.profiler import ProfilerOptions as ProfilerOptions
from mirrored.tf.profiler.experimental import server as server

def Trace(name: str, step_num: SupportsIndex | None = None, **metadata: Any) -> Any: ...
def start(logdir: str | PathLike[str], options: ProfilerOptions | None = None) -> None: ...
def stop(save: bool = True) -> None: ...
