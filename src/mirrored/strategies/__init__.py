"""Strategies: run one program on N synchronous replicas."""

from mirrored.strategies.context import ReplicaContext as ReplicaContext
from mirrored.strategies.current import experimental_set_strategy as experimental_set_strategy
from mirrored.strategies.current import get_replica_context as get_replica_context
from mirrored.strategies.current import get_strategy as get_strategy
from mirrored.strategies.current import has_strategy as has_strategy
from mirrored.strategies.current import in_cross_replica_context as in_cross_replica_context
from mirrored.strategies.extended import StrategyExtended as StrategyExtended
from mirrored.strategies.inputs import ValueContext as ValueContext
from mirrored.strategies.mirrored import MirroredStrategy as MirroredStrategy
from mirrored.strategies.mirrored import OneDeviceStrategy as OneDeviceStrategy
from mirrored.strategies.strategy import Strategy as Strategy
