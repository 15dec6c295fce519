# ruff: noqa
"""Differential oracle for `mirrored.tf`.

Small programs ("cases") were run on TensorFlow and their results stored in a
golden file.  This runner can record such a file and can check another
implementation of the same names against it.

    python oracle.py check  --golden golden.json cases_*.py
    python oracle.py record --out    golden.json cases_*.py
    python oracle.py list   cases_*.py
"""

import argparse
import contextlib
import glob
import importlib.util
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import traceback

sys.dont_write_bytecode = True  # leave the case folders as they are

RTOL, ATOL = 1e-5, 1e-6
LOGICAL_DEVICES = 4
HERE = os.path.dirname(os.path.abspath(__file__))
IMPLS = {"mirrored": "mirrored.tf", "tensorflow": "tensorflow"}

# ----------------------------------------------------------------------------
# Registration
# ----------------------------------------------------------------------------

CASES = {}


class Case:
    def __init__(self, fn, topic, replicas, mode, param, isolate, tol, source):
        self.fn, self.topic, self.replicas, self.mode = fn, topic, replicas, mode
        self.param, self.isolate, self.tol, self.source = param, isolate, tol, source
        self.id = f"{topic}.{fn.__name__}/r{replicas}"
        if mode:
            self.id += f"/{mode}"
        if param is not None:
            self.id += "/" + re.sub(r"[^\w.+-]+", "_", str(param)).strip("_")


def case(topic, replicas=2, mode=None, params=None, isolate=False, tol=None):
    """Registers a case function `fn(t)`.

    replicas: replica count, or a tuple of counts (one case each); 0 means that
      no strategy is made and `t.strategy` is None.
    mode: None, or a tuple out of "eager" and "function" (one case each); in
      mode "function" `t.fn(f)` is `tf.function(f)`, otherwise `f`.
    params: list of values, one case each, seen as `t.p`.
    isolate: the case gets a process of its own.
    tol: relative tolerance for floats instead of the default.
    """

    def register(fn):
        counts = replicas if isinstance(replicas, tuple) else (replicas,)
        modes = mode or (None,)
        values = params if params is not None else [None]
        thin = len(counts) > 1 and len(modes) > 1 and len(values) > 1
        for i, n in enumerate(counts):
            for j, p in enumerate(values):
                # three dimensions at once: alternate the mode instead of a full product
                for m in (modes[(i + j) % len(modes)],) if thin else modes:
                    c = Case(fn, topic, n, m, p, isolate, tol, fn.__code__.co_filename)
                    if c.id in CASES:
                        raise ValueError(f"duplicate case {c.id}")
                    CASES[c.id] = c
        return fn

    return register


def load_cases(files):
    sys.modules.setdefault("oracle", sys.modules[__name__])
    sys.modules["oracle"].CASES = CASES
    for f in files:
        name = "oracle_case_file_" + re.sub(r"\W", "_", os.path.abspath(f))
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(name, f)
        mod = importlib.util.module_from_spec(spec)
        sys.modules[name] = mod
        spec.loader.exec_module(mod)
    return CASES


# ----------------------------------------------------------------------------
# What a case sees
# ----------------------------------------------------------------------------

_CLASSES = (
    (NotImplementedError, "NotImplementedError"),
    (ValueError, "ValueError"),
    (TypeError, "TypeError"),
    (AttributeError, "AttributeError"),
    (RuntimeError, "RuntimeError"),
)


def _classes_of(e):
    return [name for cls, name in _CLASSES if isinstance(e, cls)] or ["other"]


def _clean(text, limit=160):
    text = (str(text).strip().splitlines() or [""])[0]
    text = re.sub(r"0x[0-9a-fA-F]+", "0x...", text)
    text = re.sub(r"(?<!\w)/(?:[\w.+-]+/)+[\w.+-]*", "<path>", text)
    return text[:limit]


class Namespace:
    """The argument of every case."""

    def __init__(self, tf, case_, strategy):
        import numpy as np

        self.tf, self.np, self.strategy = tf, np, strategy
        self.n, self.mode, self.p = case_.replicas, case_.mode, case_.param
        self.devices = [f"CPU:{i}" for i in range(case_.replicas or LOGICAL_DEVICES)]

    # -- helpers for writing programs --
    def fn(self, f):
        return self.tf.function(f) if self.mode == "function" else f

    def ctx(self):
        return self.tf.distribute.get_replica_context()

    def rid(self):
        return self.ctx().replica_id_in_sync_group

    def fid(self):
        return self.tf.cast(self.rid(), self.tf.float32)

    def per(self, values):
        """A per-replica value with values[i] on replica i."""
        vals = [self.tf.constant(v) for v in values]
        return self.strategy.experimental_distribute_values_from_function(
            lambda c: vals[int(c.replica_id_in_sync_group)]
        )

    def var(self, value, agg=None, sync=None, **kw):
        """A variable created in the strategy's scope."""
        tf = self.tf
        if agg is not None:
            kw["aggregation"] = getattr(tf.VariableAggregation, agg)
        if sync is not None:
            kw["synchronization"] = getattr(tf.VariableSynchronization, sync)
        if self.strategy is None:
            return tf.Variable(value, **kw)
        with self.strategy.scope():
            return tf.Variable(value, **kw)

    def mkstrategy(self, n, **kw):
        return self.tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(n)], **kw)

    def show(self, dataset, strategy=None):
        """Every element of a distributed dataset, as per-replica components."""
        s = strategy or self.strategy
        return [self.local(x, s) for x in dataset]

    # -- results --
    def local(self, x, strategy=None):
        """Normalised per-replica components of x."""
        s = strategy or self.strategy
        return [self.out(c) for c in s.experimental_local_results(x)]

    def out(self, x):
        """Normalises a result to plain JSON."""
        np = self.np
        if x is None or isinstance(x, str):
            return x
        if isinstance(x, (bool, int, float, np.generic, np.ndarray)):
            return self._array(np.asarray(x))
        if isinstance(x, dict):
            return {"dict": {str(k): self.out(v) for k, v in sorted(x.items(), key=lambda i: str(i[0]))}}
        if isinstance(x, tuple):
            return {"tuple": [self.out(v) for v in x]}
        if isinstance(x, list):
            return {"list": [self.out(v) for v in x]}
        parts = getattr(x, "values", None)
        if isinstance(parts, (tuple, list)):
            kind = "per_replica"
            if hasattr(x, "assign"):
                on_read = getattr(x, "synchronization", None) == self.tf.VariableSynchronization.ON_READ
                kind = "sync_on_read" if on_read else "mirrored"
            return {kind: [self.out(v) for v in parts]}
        if hasattr(x, "numpy"):
            return self._array(np.asarray(x.numpy()))
        if hasattr(x, "__array__"):
            return self._array(np.asarray(x))
        raise TypeError(f"cannot normalise a {type(x).__name__}")

    def _array(self, a):
        kind = "i" if a.dtype.kind in "iu" else a.dtype.kind
        if a.dtype.name in ("bfloat16",):
            kind = "f"
        if kind == "f":
            a = a.astype(self.np.float64)
        if kind not in "fib":
            raise TypeError(f"unsupported dtype {a.dtype}")
        return {"value": _plain(a.tolist()), "shape": list(a.shape), "kind": kind}

    def raises(self, fn):
        """Runs fn; reports the class of the exception it raised."""
        try:
            fn()
        except Exception as e:  # noqa: BLE001
            classes = _classes_of(e)  # an error of mirrored may be caught as several of them
            return {"raises": classes[0], "classes": classes, "exception": type(e).__name__, "message": _clean(e)}
        return {"raises": None}


def _plain(v):
    if isinstance(v, list):
        return [_plain(x) for x in v]
    if isinstance(v, float):
        if math.isnan(v):
            return "nan"
        if math.isinf(v):
            return "inf" if v > 0 else "-inf"
        return float(f"{v:.9g}")
    return v


# ----------------------------------------------------------------------------
# Comparison
# ----------------------------------------------------------------------------


def same(a, b, rtol=RTOL, atol=ATOL):
    """None if expected `a` and actual `b` agree, else a short reason."""
    if isinstance(a, dict) and isinstance(b, dict):
        if "raises" in a and "raises" in b:
            if a["raises"] in (b["raises"], *b.get("classes", ())) or (a["raises"] == "other" and b["raises"]):
                return None
            return f"raises {a['raises']} != {b['raises']}"
        if set(a) != set(b):
            return f"keys {sorted(a)} != {sorted(b)}"
        for k in a:
            r = same(a[k], b[k], rtol, atol)
            if r:
                return f"{k}: {r}"
        return None
    if isinstance(a, list) and isinstance(b, list):
        if len(a) != len(b):
            return f"length {len(a)} != {len(b)}"
        for i, (x, y) in enumerate(zip(a, b)):
            r = same(x, y, rtol, atol)
            if r:
                return f"[{i}] {r}"
        return None
    num = lambda v: isinstance(v, (int, float)) and not isinstance(v, bool)
    if num(a) and num(b):
        if isinstance(a, int) and isinstance(b, int):
            return None if a == b else f"{a} != {b}"
        return None if abs(a - b) <= atol + rtol * abs(a) else f"{a} != {b}"
    return None if type(a) is type(b) and a == b else f"{a!r} != {b!r}"


# ----------------------------------------------------------------------------
# Worker process
# ----------------------------------------------------------------------------


def worker(args):
    cases = load_cases(args.files)
    with open(args.ids) as f:
        ids = json.load(f)
    log = open(args.out, "a", buffering=1)

    def emit(**kw):
        log.write(json.dumps(kw) + "\n")
        log.flush()

    try:
        import importlib

        tf = importlib.import_module(IMPLS[args.impl])
        cpus = tf.config.list_physical_devices("CPU")
        tf.config.set_logical_device_configuration(cpus[0], [tf.config.LogicalDeviceConfiguration()] * LOGICAL_DEVICES)
        n = cases[ids[0]].replicas
        strategy = None
        if n:
            strategy = tf.distribute.MirroredStrategy([f"CPU:{i}" for i in range(n)])
    except BaseException as e:  # noqa: BLE001
        emit(fatal=f"{type(e).__name__}: {e}"[:600])
        return 1
    for i in ids:
        emit(start=i)
        try:
            result = cases[i].fn(Namespace(tf, cases[i], strategy))
            json.dumps(result)
            emit(id=i, result=result)
        except BaseException as e:  # noqa: BLE001
            tb = traceback.extract_tb(e.__traceback__)
            at = [f for f in tb if os.path.basename(f.filename).startswith("cases_")]
            where = f" (line {at[-1].lineno})" if at else ""
            emit(id=i, error=f"{type(e).__name__}: {e}"[:600] + where)
    emit(done=True)
    log.close()
    sys.stdout.flush()
    os._exit(0)


def run_group(ids, files, impl, timeout, report):
    """Runs ids (one replica count) in worker processes; restarts after a hang."""
    results, todo = {}, list(ids)
    while todo:
        with tempfile.TemporaryDirectory() as d:
            idsf, outf, errf = (os.path.join(d, x) for x in ("ids", "out", "err"))
            with open(idsf, "w") as f:
                json.dump(todo, f)
            open(outf, "w").close()
            env = dict(os.environ)
            env.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
            env.setdefault("CUDA_VISIBLE_DEVICES", "")
            env.setdefault("JAX_PLATFORMS", "cpu")
            env.setdefault("KERAS_BACKEND", "tensorflow" if impl == "tensorflow" else "jax")
            env.pop("TF_CONFIG", None)
            env["PYTHONPATH"] = os.pathsep.join(filter(None, [os.getcwd(), env.get("PYTHONPATH")]))
            with open(errf, "w") as err:
                p = subprocess.Popen(
                    [sys.executable, os.path.abspath(__file__), "_worker", "--impl", impl, "--ids", idsf, "--out", outf]
                    + [os.path.abspath(f) for f in files],
                    stdout=err,
                    stderr=err,
                    env=env,
                )
                last, size, hung = time.time(), 0, False
                while p.poll() is None:
                    time.sleep(0.05)
                    now = os.path.getsize(outf)
                    if now != size:
                        size, last = now, time.time()
                    if time.time() - last > timeout:
                        hung = True
                        p.kill()
                        p.wait()
            current, fatal = None, None
            for line in open(outf):
                try:
                    r = json.loads(line)
                except ValueError:
                    continue
                if "fatal" in r:
                    fatal = r["fatal"]
                elif "start" in r:
                    current = r["start"]
                elif "id" in r:
                    results[r["id"]] = r
                    report(r)
                    current = None
            if fatal:
                for i in todo:
                    if i not in results:
                        results[i] = {"id": i, "error": "worker could not start: " + fatal}
                return results
            rest = [i for i in todo if i not in results]
            if rest:
                bad = current or rest[0]
                tail = open(errf).read()[-300:].strip().replace("\n", " | ")
                why = f"no answer within {timeout} s" if hung else f"worker exited ({p.returncode}): {tail}"
                results[bad] = {"id": bad, "error": why}
                report(results[bad])
                rest = [i for i in rest if i != bad]
            todo = rest
    return results


def run_all(cases, files, impl, timeout, jobs, verbose):
    groups = {}
    for c in cases:
        groups.setdefault((c.replicas, c.id if c.isolate else ""), []).append(c.id)
    queue = sorted(groups.items(), key=lambda g: (g[0][1] != "", -len(g[1])))
    results, lock = {}, threading.Lock()

    def report(r):
        if verbose:
            print(f"  {r['id']}" + (f"  ERROR {r['error'][:200]}" if "error" in r else ""), flush=True)

    def loop():
        while True:
            with lock:
                if not queue:
                    return
                _, ids = queue.pop(0)
            got = run_group(ids, files, impl, timeout, report)
            with lock:
                results.update(got)

    threads = [threading.Thread(target=loop) for _ in range(max(1, jobs))]
    [x.start() for x in threads]
    [x.join() for x in threads]
    return results


# ----------------------------------------------------------------------------
# Commands
# ----------------------------------------------------------------------------


def select(args):
    files = sorted(sum((glob.glob(f) for f in args.files), [])) or args.files
    cases = [c for c in load_cases(files).values() if not args.only or args.only in c.id]
    return files, cases


def record(args):
    files, cases = select(args)
    results = run_all(cases, files, "tensorflow", args.timeout, args.jobs, args.verbose)
    golden, bad = {}, 0
    for c in cases:
        r = results[c.id]
        if "error" in r:
            bad += 1
            print(f"NOT RECORDED {c.id}: {r['error'][:300]}")
        else:
            golden[c.id] = {"topic": c.topic, "replicas": c.replicas, "result": r["result"]}
    with open(args.out, "w") as f:
        f.write('{"about": "recorded with TensorFlow 2.21 on CPU",\n "cases": {\n')
        f.write(",\n".join(f"  {json.dumps(k)}: {json.dumps(v, sort_keys=True)}" for k, v in sorted(golden.items())))
        f.write("\n }}\n")
    print(f"{len(golden)} recorded, {bad} not recorded")
    return 1 if bad else 0


def check(args):
    files, cases = select(args)
    with open(args.golden) as f:
        golden = json.load(f)["cases"]
    unknown = [c.id for c in cases if c.id not in golden]
    for i in unknown:
        print(f"NO GOLDEN {i}")
    cases = [c for c in cases if c.id in golden]
    results = run_all(cases, files, args.impl, args.timeout, args.jobs, args.verbose)
    table, detail = {}, []
    for c in cases:
        r, want = results[c.id], golden[c.id]["result"]
        if "error" in r:
            why, actual = r["error"], None
        else:
            actual = r["result"]
            why = same(want, actual, c.tol or RTOL, ATOL if not c.tol else max(ATOL, c.tol / 10))
        row = table.setdefault(c.topic, [0, 0])
        row[1 if why else 0] += 1
        detail.append(
            {
                "id": c.id,
                "topic": c.topic,
                "passed": not why,
                "reason": why,
                "expected": want if why else None,
                "actual": actual if why else None,
            }
        )
        if why:
            got = json.dumps(actual) if "error" not in r else r["error"]
            print(
                f"FAIL {c.id}: {why[:120] if 'error' not in r else 'error'} | expected {json.dumps(want)[:200]} | actual {got[:200]}".replace(
                    "\n", " "
                )
            )
    print(f"{'topic':20} {'passed':>7} {'failed':>7}")
    for k in sorted(table):
        print(f"{k:20} {table[k][0]:7} {table[k][1]:7}")
    failed = sum(v[1] for v in table.values())
    passed = sum(v[0] for v in table.values())
    if args.json:
        with open(args.json, "w") as f:
            json.dump({"passed": passed, "failed": failed, "no_golden": unknown, "cases": detail}, f, indent=1)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


def main(argv=None):
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = ap.add_subparsers(dest="cmd", required=True)
    for name in ("record", "check", "list", "_worker"):
        p = sub.add_parser(name)
        p.add_argument("files", nargs="+")
        p.add_argument("--only", default="", help="only cases whose id contains this text")
        p.add_argument(
            "--timeout", type=float, default=120, help="seconds without an answer before a case counts as hung"
        )
        p.add_argument("--jobs", type=int, default=1, help="worker processes at a time")
        p.add_argument("--verbose", action="store_true")
        if name == "record":
            p.add_argument("--out", required=True)
        if name == "check":
            p.add_argument("--golden", required=True)
            p.add_argument("--impl", choices=sorted(IMPLS), default="mirrored")
            p.add_argument("--json", help="write full results here")
        if name == "_worker":
            p.add_argument("--impl", required=True)
            p.add_argument("--ids", required=True)
            p.add_argument("--out", required=True)
    args = ap.parse_args(argv)
    if args.cmd == "_worker":
        return worker(args)
    if args.cmd == "list":
        for c in select(args)[1]:
            print(c.id + ("  (isolated)" if c.isolate else ""))
        return 0
    return record(args) if args.cmd == "record" else check(args)


sys.modules["oracle"] = sys.modules[__name__]
if HERE not in sys.path:
    sys.path.insert(0, HERE)
if __name__ == "__main__":
    sys.exit(main())
