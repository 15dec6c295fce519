"""Optimizers on top of optax: sum gradients over replicas, clip them, and keep state in mirrored variables."""

from mirrored.optimizers.named import SGD as SGD
from mirrored.optimizers.named import Adagrad as Adagrad
from mirrored.optimizers.named import Adam as Adam
from mirrored.optimizers.named import AdamW as AdamW
from mirrored.optimizers.named import Lamb as Lamb
from mirrored.optimizers.named import Lion as Lion
from mirrored.optimizers.named import Momentum as Momentum
from mirrored.optimizers.named import RMSprop as RMSprop
from mirrored.optimizers.optimizer import Optimizer as Optimizer

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "Lamb", "Lion", "Momentum", "Optimizer", "RMSprop"]
