"""Keras 3 on the JAX backend: its variables live on ours, its optimizers all-reduce, its `fit` distributes.

Importing this module connects Keras, by wrapping its variables' constructor, `Optimizer.apply` and `Model.fit` with its
kin. No Keras code is copied.
"""

from mirrored.integrations.keras.connecting import connect as connect
from mirrored.integrations.keras.connecting import disconnect as disconnect
from mirrored.integrations.keras.losses import LossReductionWarning as LossReductionWarning
from mirrored.integrations.keras.normalization import SyncBatchNormalization as SyncBatchNormalization
from mirrored.integrations.keras.variables import StrategyVariable as StrategyVariable
from mirrored.integrations.keras.variables import keras as keras

connect()
