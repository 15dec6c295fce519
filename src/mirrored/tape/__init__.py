"""Reverse-mode differentiation by recording: `GradientTape`, custom gradients and related functions."""

from mirrored.tape.backward import UnconnectedGradients as UnconnectedGradients
from mirrored.tape.custom_gradient import custom_gradient as custom_gradient
from mirrored.tape.custom_gradient import stop_gradient as stop_gradient
from mirrored.tape.gradient_tape import GradientTape as GradientTape
from mirrored.tape.operation import direct as direct
from mirrored.tape.unrecorded import unrecorded as unrecorded

for _public in (GradientTape, UnconnectedGradients, custom_gradient, direct, stop_gradient, unrecorded):
    _public.__module__ = __name__
del _public
