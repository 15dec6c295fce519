"""Data sources: the text of `source()`, a re-iterable of (x, y, weights, ids)."""

from __future__ import annotations

from typing import Final

from soak.program import Program

_ROWS: Final = """
BATCH = {batch}

def batches():
    for at in range(0, len(X), BATCH):
        rows = slice(at, at + BATCH)
        yield X[rows], Y[rows], WEIGHTS[rows], IDS[rows]
"""

_REFILL: Final = """
def refilled():
    # One set of buffers for all batches, like a decoder with a ring of one buffer.
    buffers = [np.empty((BATCH, *array.shape[1:]), array.dtype) for array in (X, Y, WEIGHTS, IDS)]
    for batch in batches():
        for buffer, part in zip(buffers, batch):
            buffer[:len(part)] = part
        yield tuple(buffer[:len(batch[0])] for buffer in buffers)
"""

_SOURCES: Final = {
    "batches": """
def source():
    return [tuple(np.array(part) for part in batch) for batch in batches()]
""",
    "dataset": """
def source():
    return mr.data.Dataset.from_tensor_slices((X, Y, WEIGHTS, IDS)).batch(BATCH)
""",
    "mapped": """
def source():
    rows = mr.data.Dataset.from_tensor_slices((X, Y, WEIGHTS, IDS))
    return rows.map(lambda x, y, w, i: (x * 1, y, w, i)).batch(BATCH).prefetch(2)
""",
    "shuffled": """
def source():
    rows = mr.data.Dataset.from_tensor_slices((X, Y, WEIGHTS, IDS))
    return rows.shuffle({examples}, seed=3).batch(BATCH)
""",
    "generator": """
def source():
    return mr.data.Dataset.from_generator(lambda: ((x * 1, y * 1, w * 1, i * 1) for x, y, w, i in batches()))
""",
    "reused": _REFILL
    + """
class Loader:
    def __iter__(self):
        return refilled()

def source():
    return Loader()
""",
    "reused_generator": _REFILL
    + """
def source():
    return mr.data.Dataset.from_generator(refilled)
""",
    "reused_rows": """
def rows():
    x, y = np.empty(X.shape[1:], X.dtype), np.empty(Y.shape[1:], Y.dtype)
    for index in range(len(X)):
        x[...], y[...] = X[index], Y[index]
        yield x, y, WEIGHTS[index], IDS[index]

def source():
    return mr.data.Dataset.from_generator(rows).batch(BATCH)
""",
    "grain": """
def source():
    import grain
    return grain.MapDataset.range(len(X)).map(lambda i: (X[i], Y[i], WEIGHTS[i], IDS[i])).batch(BATCH).to_iter_dataset()
""",
    "argument": _REFILL
    + """
def source():
    class Loader:
        def __iter__(self):
            return refilled()
    return Loader()
""",
}
NAMES: Final = tuple(_SOURCES)
WITH_POSITION: Final = ("batches", "dataset", "mapped", "shuffled", "grain", "generator")


def text(program: Program) -> str:
    """Returns the text of a program's source."""
    return (_ROWS + _SOURCES[program.source]).format(batch=program.batch, examples=program.examples)
