"""Finds out which divisions by the number of replicas average gradients, and which belong to the model."""

from __future__ import annotations

from collections.abc import Callable, Set


class Divisions:
    """Registry of a jaxpr's arithmetic divisions by the number of replicas.

    One bit of a mask stands for each division. A model may divide by the same number, as average pooling over 2x2
    elements does on 4 replicas. The derivative of such a division divides by it once more, in the same shape. So a
    value that depends on a division, and is divided again in that shape, was divided by the derivative, and not by the
    program to average gradients over replicas.

    Args:
        may_be_batch: Tells whether the first dimension of a shape may be the batch.
    """

    def __init__(self, may_be_batch: Callable[[tuple[int, ...]], bool]) -> None:
        self._may_be_batch = may_be_batch
        self._count = 0
        self._of_batch = 0
        self._forward: dict[tuple[int, ...], int] = {}
        self._derivatives: dict[tuple[int, ...], int] = {}

    def add(self, shape: tuple[int, ...], before: int, depends: bool) -> int:
        """Registers a division by the number of replicas, and returns the bit that identifies the division.

        Args:
            shape: The shape of the quotient.
            before: The divisions on which the dividend depends.
            depends: Whether the dividend depends on the batch.
        """
        bit = 1 << self._count
        self._count += 1
        self._of_batch |= bit if depends else 0
        forward, derivatives = self._forward.get(shape, 0), self._derivatives.get(shape, 0)
        is_derivative = (before & forward).bit_count() > (before & derivatives).bit_count()
        known = self._derivatives if is_derivative else self._forward
        known[shape] = known.get(shape, 0) | bit
        return bit

    def is_derivative(self, bit: int) -> bool:
        """Returns whether a division results from differentiating another division.

        For example, with R replicas, the derivative of ``x / R`` divides the cotangent by R. A program that averages a
        gradient over replicas divides by R, too, but is not in the backward pass of a division.
        """
        return any(bit & mask for mask in self._derivatives.values())

    def may_average(self, mask: int, gradients: Set[tuple[int, ...]]) -> bool:
        """Returns whether any of the given divisions may average gradients over replicas.

        Args:
            mask: The divisions on which a gradient depends, one bit each.
            gradients: The shapes of all gradients.
        """
        own = mask & self._of_batch
        for shape, divisions in self._forward.items():
            if not own & divisions:
                continue
            derivatives = (mask & self._derivatives.get(shape, 0)).bit_count()
            if shape in gradients:
                if (mask & divisions).bit_count() > derivatives:
                    return True
            elif not derivatives and not (len(shape) > 1 and self._may_be_batch(shape)):
                return True
        return False
