"""Registry through which lower layers of `mirrored` call higher ones, such as distributed datasets and summaries."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from mirrored.errors import ArgumentError
from mirrored.runtime.ambient import ambient
from mirrored.runtime.closure_key import KeyOf, closure_key, code_of

# Hook for `mirrored.tf`: programs for TensorFlow catch errors about shapes by TensorFlow's class.

_shape_errors: list[Callable[..., ArgumentError]] = [ArgumentError]


def set_shape_error(make: Callable[..., ArgumentError]) -> None:
    """Registers the class or function that creates errors about incompatible shapes."""
    _shape_errors[:] = [make]


def shape_error(called: str, *, found: str, rule: str, remedy: str) -> ArgumentError:
    """Creates an error about incompatible shapes."""
    return _shape_errors[0](called, found=found, rule=rule, remedy=remedy)


# Hooks for `mirrored.data`: strategies offer distributed datasets, and the layer above registers constructors.

Distributor = Callable[..., Any]
"""Creates a distributed dataset or iterator from a strategy, a dataset or function, and options if there are any."""

_distributors: dict[str, Distributor] = {}


def set_distributors(
    *,
    dataset: Distributor,
    from_function: Distributor,
    dataset_iterator: Distributor,
    input_fn_iterator: Distributor,
) -> None:
    """Registers the functions that create distributed datasets and TensorFlow 1 iterators."""
    _distributors.update(
        dataset=dataset,
        from_function=from_function,
        dataset_iterator=dataset_iterator,
        input_fn_iterator=input_fn_iterator,
    )


def distribute_dataset(strategy: object, dataset: object, options: object) -> Any:
    """Returns a distributed dataset that splits each global batch of `dataset` into per-replica batches."""
    return _distributors["dataset"](strategy, dataset, options)


def distribute_from_function(strategy: object, dataset_fn: Callable[..., Any], options: object) -> Any:
    """Returns a distributed dataset for a function that creates datasets of per-replica batches."""
    return _distributors["from_function"](strategy, dataset_fn, options)


def make_dataset_iterator(strategy: object, dataset: object) -> Any:
    """Returns a re-initializable TensorFlow 1 iterator over a dataset of global batches."""
    return _distributors["dataset_iterator"](strategy, dataset)


def make_input_fn_iterator(strategy: object, input_fn: Callable[..., Any], replication_mode: object) -> Any:
    """Returns a re-initializable TensorFlow 1 iterator over the dataset that `input_fn` returns."""
    return _distributors["input_fn_iterator"](strategy, input_fn, replication_mode)


# The writers of summaries, which are TensorFlow's names: a framework's callback may write with them.

_summary: list[Callable[[], Any]] = []


def set_summary(load: Callable[[], Any]) -> None:
    """Registers the function that imports and returns mirrored's equivalent of the module `tf.summary`."""
    _summary[:] = [load]


def summary() -> Any:
    """Returns mirrored's equivalent of the module `tf.summary`."""
    return _summary[0]()


# Connects frameworks whose models create their own variables, when the program opens a strategy's scope.
#
# A framework that is imported while a scope is open is connected at the end of its import, so the order of imports does
# not matter.

_bridges: dict[str, str] = {}
_roots: dict[str, str] = {}
_warned: set[str] = set()


def set_bridges(bridges: Mapping[str, str], roots: Mapping[str, str]) -> None:
    """Registers the modules that integrate frameworks such as Keras and Flax with mirrored.

    Args:
        bridges: The bridge of each framework, by the framework module whose presence in `sys.modules` shows its use.
        roots: That framework module, by the package that a program imports.
    """
    _bridges.update(bridges)
    _roots.update(roots)


def connect(root: str | None = None) -> None:
    """Imports and applies the integrations of the frameworks (such as Keras) that the program has imported.

    Args:
        root: The package of the only framework to be integrated. Default: all frameworks.
    """
    for framework, bridge in _bridges.items():
        if root is not None and framework != _roots[root]:
            continue
        if any(_other_backend(package) for package, shown_by in _roots.items() if shown_by == framework):
            continue  # Keras' NumPy backend imports modules of its JAX backend
        if framework in sys.modules and importlib.util.find_spec(bridge) is not None:
            module = importlib.import_module(bridge)
            # A bridge imports its framework. If a scope is open, the end of that import calls `connect` again, before
            # the bridge is complete. Such a bridge is skipped here; it connects at the end of its own import.
            if not getattr(module.__spec__, "_initializing", False):
                module.connect()


def connect_when_imported(root: str, bridge: str) -> None:
    """Replaces a framework's integration, and applies it now if the program has imported the framework, else then.

    Args:
        root: The package that a program imports.
        bridge: The module that integrates it.
    """
    shown_by = _roots[root]
    _bridges[shown_by] = bridge
    if root not in sys.modules:
        sys.meta_path.insert(0, Finder([root], root))
    elif shown_by in sys.modules:
        connect(root)


def watch_imports() -> Finder | None:
    """Installs and returns an import hook that integrates frameworks such as Keras when they are imported.

    Returns None if all are imported already.
    """
    for root in _roots:
        _warn_of_backend(root)
    awaited = [root for root, shown_by in _roots.items() if shown_by not in sys.modules]
    if not awaited:
        return None
    finder = Finder(awaited)
    sys.meta_path.insert(0, finder)
    return finder


def end_watching(finder: Finder | None) -> None:
    """Removes the import hook that `watch_imports` has installed."""
    if finder in sys.meta_path:  # not after an interrupt of the first call
        sys.meta_path.remove(finder)


def _other_backend(root: str) -> str | None:
    """Returns the backend of a framework that the program has imported; None if it is JAX, or there is none."""
    backend = getattr(getattr(sys.modules.get(root), "backend", None), "backend", None)
    name = backend() if callable(backend) else "jax"
    return None if name == "jax" else str(name)


def _warn_of_backend(root: str) -> None:
    """Warns once if a framework uses a backend other than JAX, so that its models cannot be distributed."""
    backend = _other_backend(root)
    if root in _warned or backend is None:
        return
    _warned.add(root)
    warnings.warn(
        f"{root} uses the backend {backend!r}: models created in strategy.scope() are not distributed\n"
        f"  rule:   models of a strategy use the JAX backend\n"
        f"  remedy: write at the top of the program, before {root} is imported: "
        f"import os; os.environ['{root.upper()}_BACKEND'] = 'jax'",
        stacklevel=4,
    )


class Finder(importlib.abc.MetaPathFinder):
    """Import hook that calls `connect` after the import of a framework such as Keras.

    Args:
        awaited: The packages of the frameworks.
        only: The argument of `connect`.
    """

    def __init__(self, awaited: Sequence[str], only: str | None = None) -> None:
        self._awaited, self._only = awaited, only
        self._asking = threading.local()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns a framework's module spec, with a loader that calls `connect` after the import.

        Other import hooks find the spec. The result is None for other modules.
        """
        if fullname not in self._awaited or getattr(self._asking, "now", False):
            return None
        self._asking.now = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._asking.now = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self._only)
        return spec


class _Loader(importlib.abc.Loader):
    """Module loader that delegates to another loader and then calls `connect`.

    A framework may import another one (Flax NNX imports Linen): then the outermost loader alone calls `connect`.
    """

    _loading = threading.local()

    def __init__(self, loader: importlib.abc.Loader, only: str | None) -> None:
        self._loader, self._only = loader, only

    def __getattr__(self, name: str) -> Any:
        """Returns what else the loader has, such as the `get_data` that `pkgutil` calls."""
        if name == "_loader":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType | None:
        created: types.ModuleType | None = self._loader.create_module(spec)
        return created

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        outer, self._loading.now = getattr(self._loading, "now", False), True
        try:
            self._loader.exec_module(module)
        finally:
            self._loading.now = outer
        if not outer:
            connect(self._only)


# Functions driven from Python: compiled functions that iterate a dataset in their body.
#
# A compiled program cannot iterate a dataset: an element taken during tracing would become a constant of the program.
# So a function that takes elements runs as Python at every call, and each `run` in it is compiled separately.

_MAX_VARIANTS: Final = 8


class IteratedWhileTracing(BaseException):
    """Exception that ends a trace in which the user's function iterates over a dataset.

    The function then runs as Python at every call.

    It is not an `Exception`: user code that catches `Exception` must not handle it, or its handler would be traced.
    """


class IteratedAsPython:
    """Marker base class of datasets and iterators that compiled functions iterate in plain Python.

    A compiled function's first call with one of them runs as Python, because a trace would execute the code before the
    loop once more. If the call takes no elements, later calls are compiled.
    """

    __slots__ = ()


class EndOfElements(StopIteration):
    """The `StopIteration` at a dataset's end inside an untraced `mirrored.function`.

    A function that iterates over a dataset runs as Python instead of being traced.

    Args:
        error: The error that the caller of the driven function receives if no loop handles the end.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


def stop_iteration(error: Callable[[], Exception]) -> StopIteration:
    """Returns the exception that a dataset iterator's `__next__` must raise at the end of the dataset.

    Args:
        error: Creates the error for the caller of a driven function. A StopIteration must not leave the function, where
            it would silently end a loop of the caller.
    """
    interceptor = ambient().interceptor
    return StopIteration() if interceptor is None or not interceptor.compiles else EndOfElements(error())


def note_iteration(iterator: object = None) -> None:
    """Called when user code iterates over a dataset; ends the trace in progress, which cannot record the loop.

    Called by `__iter__`, and for every element.

    Args:
        iterator: The iterator whose next element is about to be read, if any. A restored checkpoint that waits for its
            position restores the position before the first element.

    Raises:
        IteratedWhileTracing: A function is being traced.
    """
    here = ambient()
    if here.store is not None and here.store.captures:
        raise IteratedWhileTracing
    if here.interceptor is not None:
        here.interceptor.has_iterated = True
    if _unread and iterator is not None:
        _restore_if_unread(iterator)


# Hook for `mirrored.checkpoint`: iterators that the program creates while a restore waits for new state, and from which
# it has read nothing.

_restore_unread: list[Callable[[object], None]] = []
_unread: dict[int, weakref.ref[object]] = {}


def set_unread_hook(restore: Callable[[object], None] | None) -> None:
    """Registers a function to be called with a new iterator before its first element is read; None ends this."""
    _restore_unread[:] = [] if restore is None else [restore]
    if restore is None:
        _unread.clear()


def note_created(iterator: object) -> None:
    """Called with every new iterator of a dataset, whose position a waiting restore may have."""
    if _restore_unread:
        key = id(iterator)
        _unread[key] = weakref.ref(iterator, lambda _: _unread.pop(key, None))


def note_moved(iterator: object) -> None:
    """Called when an iterator's position is set; a waiting restore then leaves the iterator there."""
    _unread.pop(id(iterator), None)


def unread_iterators() -> list[object]:
    """Returns the iterators that were created while a restore waits, and from which nothing was read yet."""
    return [one for reference in list(_unread.values()) if (one := reference()) is not None]


def _restore_if_unread(iterator: object) -> None:
    if id(iterator) in _unread:
        for restore in _restore_unread:
            restore(iterator)
        note_moved(iterator)  # not after an error, which each further read raises again


class RunInterceptor:
    """Compiles and caches the replica functions of a `mirrored.function` that runs as Python, without a trace.

    A replica function that is defined inside the driven function is a new object at each call. So the cache key is its
    code and the values that it closes over, has as defaults, or is bound to (`closure_key`).

    Args:
        compile_function: Compiles a replica function.
        key_of: Returns the key of a value that is no function.

    Attributes:
        has_iterated: Whether the driven function has taken elements of a dataset.
    """

    compiles = True
    """Whether the runs are compiled. Otherwise the interceptor only records them (`compilation.ragged`)."""

    def __init__(self, compile_function: Callable[[Callable[..., Any]], Any], key_of: KeyOf) -> None:
        self._compile = compile_function
        self._key_of = key_of
        self._compiled: dict[Hashable, Any] = {}
        self._after: dict[int, Hashable] = {}  # by the id of a compiled function: the key after its last run
        self._variants: dict[Hashable, int] = {}
        self.has_iterated = False

    def for_run(self, strategy: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Callable[..., Any]:
        """Returns the compiled version of a function that is passed to `Strategy.run`.

        The run calls the result. A function that was compiled too often is returned uncompiled (`compiled`).
        """
        return self.compiled(function)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function` compiled, or uncompiled if its code was compiled too often with different closures."""
        key = self._key(function)
        if key not in self._compiled:
            code = code_of(function)
            self._variants[code] = self._variants.get(code, 0) + 1
            if self._variants[code] > _MAX_VARIANTS:
                return function
            self._compiled[key] = self._compile(function)
        return self._compiled[key]  # type: ignore[no-any-return]

    def run(self, function: Callable[..., Any], compiled: Any, run: Callable[[], Any]) -> Any:
        """Executes a run and updates the cache key of its compiled function.

        `run` executes the run. A trace, or an eager run of uneven batches, may change a list or dict that `function`
        closes over. `compiled` is then also cached under the key of the new contents; otherwise every later call would
        trace again.
        """
        traces = getattr(compiled, "trace_count", 0)
        result = run()
        if getattr(compiled, "trace_count", 0) == traces and not getattr(compiled, "has_met_ragged", False):
            return result  # a compiled step, which changes no Python objects
        after = self._key(function)
        if after not in self._compiled:
            self._compiled.pop(self._after.pop(id(compiled), None), None)  # only the last contents, to bound the memory
            self._compiled[after], self._after[id(compiled)] = compiled, after
        return result

    def _key(self, function: Callable[..., Any]) -> Hashable:
        return code_of(function), closure_key(function, self._key_of)

    @property
    def trace_count(self) -> int:
        """The number of times that this interceptor's compiled replica functions have been traced."""
        return sum(compiled.trace_count for compiled in {id(one): one for one in self._compiled.values()}.values())
