"""Adapter for Keras 3 on JAX: distributes variables, optimizers and `fit` over the replicas of a strategy.

`mirrored` variables back Keras variables, Keras optimizers all-reduce gradients, and `fit` splits batches over the
devices. Importing this module connects Keras: it wraps the constructor of variables, `Optimizer.apply`, `Model.fit` and
similar methods. No Keras code is copied.
"""

from mirrored.integrations.keras.connecting import connect as connect
from mirrored.integrations.keras.connecting import disconnect as disconnect
from mirrored.integrations.keras.losses import LossReductionWarning as LossReductionWarning
from mirrored.integrations.keras.normalization import SyncBatchNormalization as SyncBatchNormalization
from mirrored.integrations.keras.trees import BRIDGE as BRIDGE
from mirrored.integrations.keras.variables import StrategyVariable as StrategyVariable
from mirrored.integrations.keras.variables import keras as keras

connect()
