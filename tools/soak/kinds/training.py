"""Programs that train: a loop over a source, with an event, compared with plain JAX on one device."""

from __future__ import annotations

from typing import Any, Final

from soak import reference
from soak.kinds import sources, text, updates
from soak.program import Program

_EVENTS: Final = '''
FAILS = {"now": False}

def replica_number():
    number = mr.get_replica_context().replica_id_in_sync_group
    return number if isinstance(number, int) else mr.get_replica_context().num_replicas_in_sync - 1

def with_exception(run, step, batch):
    before, weights = int(run.count.numpy()), run.weights()
    FAILS["now"] = True
    try:
        return step(*batch)  # a compiled step raises only where it is traced
    except RuntimeError as error:
        if "an exception in one replica" not in str(error):
            raise
        after = run.weights()
        whole = all(np.array_equal(weights[name], after[name]) for name in weights)
        assert whole and before == int(run.count.numpy()), "a failed step has changed state"
    finally:
        FAILS["now"] = False
    return step(*batch)

def with_interrupt(run, step, batch, seconds):
    import signal
    before = int(run.count.numpy())
    old = signal.signal(signal.SIGALRM, signal.default_int_handler)
    result = None
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        result = step(*batch)
        jax.block_until_ready(result[0])
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    run.weights()
    if int(run.count.numpy()) == before:
        return step(*batch)
    assert int(run.count.numpy()) == before + 1, "an interrupted step has changed some of the state"
    return result if result is not None else (None, None)  # lost, as its caller would see it

class Reader:
    """A second thread that reads the weights while they are trained."""

    def __init__(self, run):
        import threading
        self.run, self.error, self.stopped = run, None, threading.Event()
        self.thread = threading.Thread(target=self.read)
        self.thread.start()

    def read(self):
        while not self.stopped.wait(0.002):
            try:
                assert all(np.isfinite(value).all() for value in self.run.weights().values())
            except BaseException as error:
                self.error = f"{type(error).__name__}: {error}"
                return

    def stop(self):
        self.stopped.set()
        self.thread.join()
        assert self.error is None, f"a reading thread failed: {self.error}"
'''

_TRAIN: Final = """
def rows_of(strategy, ids, step):
    if ids is None:  # lost to an interrupt
        return None
    # Without a strategy of several replicas, `run` returns plain values.
    parts = [np.asarray(part) for part in strategy.local_results(ids)]
    parts = parts if step is None else [part[step] for part in parts]
    return [int(row) for part in parts for row in part if row >= 0]

def as_arguments(batch):
    return batch if isinstance(batch, tuple) else (batch,)

def order_of(dataset):
    return [[numbers(batch[3]) for batch in dataset] for _ in range({epochs})]

def train(devices, replicas):
    strategy = make_strategy(devices, replicas)
    run = build(strategy)
    options = mr.data.InputOptions(last_batch={last_batch!r})
    dataset = {dataset}
    losses, seen, number, reader = [], [], 0, None
{before}
    for epoch in range({epochs}):
        iterator = iter(dataset)
        while True:
            try:
                batch = next(iterator)
            except StopIteration:
                break
{step}
{after}
{finish}
    run.copies()
    assert int(run.count.numpy()) == number, f"{{number}} steps, counted {{int(run.count.numpy())}}"
    seen = [rows_of(*one) for one in seen]
    losses = [None if loss is None else float(loss) for loss in losses]
    return {{"losses": losses, "seen": seen, "weights": run.weights()}}

def program():
    record = train({devices}, {replicas})
    bits_of = {{{devices}: bits([record["losses"], record["weights"]])}}
    for devices in {layouts}:
        other = train(devices, {replicas})
        bits_of[devices] = bits([other["losses"], other["weights"]])
    record["bits"] = sorted(set(bits_of.values())) if len(set(bits_of.values())) > 1 else "equal"
    record["order"] = {order}
    record["weights"] = {{name: numbers(value) for name, value in record["weights"].items()}}
    return record
"""

_ONE: Final = """
number += 1
loss, ids = run.step(*as_arguments(batch))
losses.append(loss)
seen.append((strategy, ids, None))
"""
_SEVERAL: Final = """
batches = [as_arguments(batch)]
try:
    batches.append(as_arguments(next(iterator)))
except StopIteration:
    pass
if len(batches) == 2:
    loss, ids = run.step(batches)
    losses.extend(list(loss))
    seen.extend([(strategy, ids, 0), (strategy, ids, 1)])
else:
    loss, ids = run.single(*batches[0])
    losses.append(loss)
    seen.append((strategy, ids, None))
number += len(batches)
"""
_SPECIAL: Final = """
number += 1
if number == {at} + 1:
    loss, ids = {call}
else:
    loss, ids = run.step(*as_arguments(batch))
losses.append(loss)
seen.append((strategy, ids, None))
"""
_RESTORE: Final = """
if number == {at}:
    # Another program with another device assignment continues.
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        from mirrored.checkpoint import Checkpoint
        path = Checkpoint(**run.state, iterator=iterator).save(folder + "/c")
        strategy = make_strategy({devices}, {replicas})
        run = build(strategy)
        dataset = {dataset}
        iterator = iter(dataset)
        Checkpoint(**run.state, iterator=iterator).restore(path).assert_consumed()
"""


def body(program: Program) -> str:
    """Returns the text of a training program."""
    dataset = "source()"
    if program.source != "argument":
        dataset = "strategy.experimental_distribute_dataset(source(), options)"
    step, after = _ONE, ""
    if program.way == "steps_per_call":
        step = _SEVERAL
    elif program.event in ("exception", "interrupt"):
        call = "with_exception(run, run.step, as_arguments(batch))"
        if program.event == "interrupt":
            seconds = ((program.seed * 2654435761) % 1000) / 1000 * 0.05
            call = f"with_interrupt(run, run.step, as_arguments(batch), {seconds:.4f})"
        step = _SPECIAL.format(at=program.event_step, call=call)
    if program.event == "restore":
        after = _RESTORE.format(
            at=program.event_step,
            devices=program.restore_devices,
            replicas=program.restore_replicas,
            dataset=dataset,
        )
        if program.source == "argument":
            after = after.replace(", iterator=iterator", "").replace("        dataset = source()\n", "")
            after = after.replace("        iterator = iter(dataset)\n", "")
    reads = program.event == "reader"
    main = _TRAIN.format(
        epochs=program.epochs,
        last_batch=program.last_batch,
        dataset=dataset,
        before=text.indented("reader = Reader(run)\ntry:" if reads else "", 1),
        step=text.indented(step, 3),
        after=text.indented(after, 3),
        finish="",
        devices=program.devices,
        replicas=program.replicas,
        layouts=program.layouts,
        order="order_of(source())" if program.source == "shuffled" else None,
    )
    return text.header(program, sources.text(program), _EVENTS, updates.text(program), _guarded(main, reads))


def _guarded(main: str, reads: bool) -> str:
    """Puts the loop into try/finally, so that a failing program stops its reading thread."""
    if not reads:
        return main
    before, rest = main.split("    try:\n", 1)
    loop, after = rest.split("    run.copies()\n", 1)
    loop = "\n".join("    " + line if line.strip() else line for line in loop.splitlines())
    return f"{before}    try:\n{loop}\n    finally:\n        reader.stop()\n    run.copies()\n{after}"


def expected(program: Program, record: dict[str, Any]) -> dict[str, Any]:
    """Returns losses, weights and examples of the same training on one device."""
    orders = reference.orders_of(program)
    if program.source == "shuffled":
        epochs = record["order"] or []
        whole = [[row for batch in epoch for row in batch] for epoch in epochs]
        if any(sorted(epoch) != list(range(program.examples)) for epoch in whole):
            return {"order": "each epoch a permutation of the examples"}
        if program.examples > 5 and any(a == b for a, b in zip(whole, whole[1:], strict=False)):
            return {"order": "another order in each epoch"}
        orders = [batch for epoch in epochs for batch in epoch[: len(program.batch_sizes)]]
    trained = reference.train(program, orders)
    return {"losses": trained["losses"], "weights": trained["weights"], "seen": orders, "bits": "equal"}


def refusals(program: Program) -> tuple[str, ...]:
    """Returns the allowed errors: a closure that JAX cannot differentiate may raise."""
    if program.model in ("custom_vjp", "custom_jvp"):
        return ("custom_vjp", "custom_jvp", "closed-over", "close over", "closes over", "closure")
    return ()
