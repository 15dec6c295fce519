"""Recording what is computed, to differentiate it afterwards."""

from mirrored.tape._custom_gradient import custom_gradient as custom_gradient
from mirrored.tape._custom_gradient import stop_gradient as stop_gradient
from mirrored.tape._direct import direct as direct
from mirrored.tape._gradient_tape import GradientTape as GradientTape
from mirrored.tape._structure import UnconnectedGradients as UnconnectedGradients
from mirrored.tape._unrecorded import unrecorded as unrecorded

for _public in (GradientTape, UnconnectedGradients, custom_gradient, direct, stop_gradient, unrecorded):
    _public.__module__ = __name__
del _public
