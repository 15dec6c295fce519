"""Saves and restores the tree of attributes of an exported object: variables, modules, lists, dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mirrored.errors import ArgumentError
from mirrored.tf._module import Module
from mirrored.variables import Variable


class Objects:
    """Encodes an object and its attributes as numbered JSON nodes, which refer to each other by number.

    Args:
        variables: The saved variables by identity, in order; variables of the tree are added.

    Attributes:
        nodes: ``{"variable": number}``, ``{"object": {attribute: node}}``, ``{"list": [node, ...]}`` or
            ``{"dict": {key: node}}``; the first one is the root. In lists and dicts, null stands for None. A list with
            any other member that is not saved is empty.
    """

    def __init__(self, variables: dict[int, Variable]) -> None:
        self._variables = variables
        self.nodes: list[dict[str, Any]] = []
        self._places: dict[int, int] = {}

    def add(self, value: object) -> int | None:
        """Encodes an object and its attributes; returns the number of its JSON node.

        Returns None if the object is not saved.
        """
        if id(value) in self._places:
            return self._places[id(value)]
        if self.nodes and not isinstance(value, (Module, list, tuple, dict)) and _variable_of(value) is None:
            return None
        place = self._places[id(value)] = len(self.nodes)
        self.nodes.append({})
        self.nodes[place] = self._node(value)
        return place

    def _node(self, value: object) -> dict[str, Any]:
        variable = _variable_of(value)
        if variable is not None:
            self._variables.setdefault(id(variable), variable)
            return {"variable": list(self._variables).index(id(variable))}
        if isinstance(value, (list, tuple)):
            members = [self.add(one) for one in value]
            unsaved = any(place is None and one is not None for place, one in zip(members, value, strict=True))
            return {"list": [] if unsaved else members}
        if isinstance(value, dict):
            named = {key: (one, self.add(one)) for key, one in value.items() if isinstance(key, str)}
            return {"dict": {key: place for key, (one, place) in named.items() if place is not None or one is None}}
        return {"object": self._named(_attributes(value))}

    def _named(self, values: Mapping[str, Any]) -> dict[str, int]:
        found = {name: self.add(value) for name, value in values.items()}
        return {name: place for name, place in found.items() if place is not None}


def _attributes(value: Any) -> dict[str, Any]:
    """Returns an object's instance attributes; for a Keras model, only its weights."""
    if not isinstance(value, Module) and hasattr(value, "trainable_weights"):
        return {"weights": list(value.weights)}
    own: frozenset[str] = getattr(type(value), "_not_saved", frozenset())  # of a loaded model
    return {name: one for name, one in getattr(value, "__dict__", {}).items() if name not in own}


def _variable_of(value: object) -> Variable | None:
    """Returns `value` if it is a `Variable`, or the `Variable` that backs a Keras variable; None for other values."""
    found = value if isinstance(value, Variable) else getattr(value, "mirrored", None)
    return found if isinstance(found, Variable) else None


class LoadedObject(Module):
    """A module of a loaded model, which has the variables, modules, lists and dicts of the saved one."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises an error.

        Raises:
            ArgumentError: Always.
        """
        raise ArgumentError(
            "a module of a loaded model",
            found="it was called, but tf.saved_model.save has not saved its functions",
            rule="a saved model has the functions of the object that was passed to save, not those of its modules",
            remedy="make the function an attribute of this object: root.encode = root.encoder.__call__",
        )


def rebuilt(nodes: Sequence[Mapping[str, Any]], variables: Sequence[Variable], root: object) -> None:
    """Recreates the attributes of a saved object from JSON nodes, and sets them on `root`."""
    made: dict[int, Any] = {0: root}

    def make(place: int) -> Any:
        if place in made:
            return made[place]
        ((kind, content),) = nodes[place].items()
        if kind == "variable":
            made[place] = variables[content]
        elif kind == "list":
            members: list[Any] = []
            made[place] = members
            members.extend(None if one is None else make(one) for one in content)
        elif kind == "dict":
            named: dict[str, Any] = {}
            made[place] = named
            named.update({key: None if one is None else make(one) for key, one in content.items()})
        else:
            made[place] = module = LoadedObject(name="loaded_object")
            fill(module, content)
        return made[place]

    def fill(target: object, content: Mapping[str, int]) -> None:
        for name, place in content.items():
            if not hasattr(type(target), name):
                setattr(target, name, make(place))

    if nodes:
        fill(root, nodes[0].get("object", {}))
