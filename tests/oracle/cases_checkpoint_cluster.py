# ruff: noqa
"""Checkpoints across replica counts, and cluster resolvers."""

import contextlib
import json
import os
import tempfile

from oracle import case


def strategy_or_none(t, n, cache):
    if n == 0:
        return None
    if n not in cache:
        cache[n] = t.mkstrategy(n)
    return cache[n]


# --- checkpoints ------------------------------------------------------------------


@case("checkpoint", replicas=(1, 2))
def restoring_in_place(t):
    tf, v = t.tf, t.var([1.0, 2.0])
    c = tf.train.Checkpoint(v=v)
    with tempfile.TemporaryDirectory() as d:
        path = c.save(os.path.join(d, "c"))
        v.assign([7.0, 8.0])
        c.restore(path)
    return t.out(v)


@case("checkpoint", replicas=(0, 2))
def nested_objects_and_lists(t):
    tf = t.tf

    def build(k):
        m = tf.Module()
        m.a = t.var(1.0 * k)
        m.inner = tf.Module()
        m.inner.b = t.var([2.0 * k, 3.0 * k])
        m.items = [t.var(4.0 * k), t.var(5.0 * k)]
        return m

    m, n = build(1), build(0)
    with tempfile.TemporaryDirectory() as d:
        path = tf.train.Checkpoint(m=m).save(os.path.join(d, "c"))
        tf.train.Checkpoint(m=n).restore(path)
    return [t.out(n.a), t.out(n.inner.b), t.out(n.items[0]), t.out(n.items[1])]


@case("checkpoint", replicas=(0, 2))
def manager_keeps_the_newest(t):
    tf, v = t.tf, t.var(0.0)
    c = tf.train.Checkpoint(v=v)
    with tempfile.TemporaryDirectory() as d:
        m = tf.train.CheckpointManager(c, d, max_to_keep=2)
        for k in range(4):
            v.assign(float(k))
            m.save()
        names = [os.path.basename(p) for p in m.checkpoints]
        v.assign(-1.0)
        c.restore(m.latest_checkpoint)
    return [names, t.out(v)]


@case("checkpoint", replicas=0, isolate=True, params=["2-4", "4-1", "2-0"], tol=1e-4)
def model_and_optimizer_continue(t):
    """Two steps, save, restore under another replica count, two more steps."""
    tf = t.tf
    n, m = map(int, t.p.split("-"))
    cache = {}
    x = tf.constant([1.0, 2.0])

    def step(s, v, o):
        def f():
            scale = 1.0 if s is None else 1.0 / s.num_replicas_in_sync
            with tf.GradientTape() as g:
                loss = tf.reduce_sum(tf.square(v - x)) * scale
            o.apply_gradients([(g.gradient(loss, v), v)])

        f() if s is None else s.run(f)

    def build(s, value):
        scope = s.scope() if s is not None else contextlib.nullcontext()
        with scope:
            v = tf.Variable(value)
            mom = tf.Variable([0.0, 0.0])
        return v, mom

    s, r = strategy_or_none(t, n, cache), strategy_or_none(t, m, cache)

    def manual(s, v, mom):
        # momentum by hand: needs both variables to be restored
        def f():
            with tf.GradientTape() as g:
                loss = tf.reduce_sum(tf.square(v - x))
            d = g.gradient(loss, v)
            mom.assign(0.9 * mom + d)
            v.assign_sub(0.1 * mom)

        f() if s is None else s.run(f)

    v, mom = build(s, [0.0, 0.0])
    manual(s, v, mom)
    manual(s, v, mom)
    with tempfile.TemporaryDirectory() as d:
        path = tf.train.Checkpoint(v=v, mom=mom).save(os.path.join(d, "c"))
        v2, mom2 = build(r, [5.0, 5.0])
        tf.train.Checkpoint(v=v2, mom=mom2).restore(path)
    manual(r, v2, mom2)
    manual(s, v, mom)
    return [t.out(v2), t.out(mom2), t.out(v.read_value())]


@case("checkpoint", replicas=(0, 2))
def missing_file(t):
    c = t.tf.train.Checkpoint(v=t.var(1.0))
    with tempfile.TemporaryDirectory() as d:
        return t.raises(lambda: c.restore(os.path.join(d, "nothing-1")))


@contextlib.contextmanager
def environ(**kw):
    keys = [k for k in os.environ if k.startswith("SLURM")] + ["TF_CONFIG", "CUDA_VISIBLE_DEVICES"] + list(kw)
    old = {k: os.environ.get(k) for k in keys}
    for k in keys:
        os.environ.pop(k, None)
    os.environ.update(kw)
    try:
        yield
    finally:
        for k, v in old.items():
            os.environ.pop(k, None)
            if v is not None:
                os.environ[k] = v


def cr(t):
    return t.tf.distribute.cluster_resolver


CLUSTER = {"ps": ["p0:1", "p1:1"], "worker": ["w0:2", "w1:2"]}


def tfconfig(t, config, **kw):
    with environ(TF_CONFIG=json.dumps(config)):
        r = cr(t).TFConfigClusterResolver(**kw)
        return [r.cluster_spec().as_dict(), r.task_type, r.task_id, r.rpc_layer, r.master()]


# --- cluster resolvers ------------------------------------------------------------


@case("cluster", replicas=0)
def tf_config_of_a_worker(t):
    return [
        tfconfig(t, {"cluster": CLUSTER, "task": {"type": "worker", "index": 1}}),
        tfconfig(t, {"cluster": CLUSTER, "task": {"type": "worker", "index": "1"}}),
        tfconfig(t, {"cluster": CLUSTER, "rpc_layer": "grpc", "task": {"type": "ps", "index": 1}}),
    ]


@case("cluster", replicas=0)
def tf_config_empty_or_small(t):
    out = [tfconfig(t, {}), tfconfig(t, {"cluster": {"worker": ["w0:2"]}})[4]]
    with environ():
        out.append(cr(t).TFConfigClusterResolver().master())
    return out


@case("cluster", replicas=0)
def tf_config_session_master(t):
    return tfconfig(t, {"session_master": "sm:1", "cluster": CLUSTER, "task": {"type": "worker", "index": 0}})[4]


@case("cluster", replicas=0)
def tf_config_errors(t):
    def bad_json():
        with environ(TF_CONFIG="{bad"):
            cr(t).TFConfigClusterResolver().cluster_spec()

    def bad_index():
        tfconfig(t, {"cluster": CLUSTER, "task": {"type": "worker", "index": 7}})

    return [t.raises(bad_json), t.raises(bad_index)]


@case("cluster", replicas=0)
def tf_config_task_type_is_text(t):
    with environ(TF_CONFIG=json.dumps({"cluster": CLUSTER, "task": {"type": 123, "index": "0"}})):
        r = cr(t).TFConfigClusterResolver()
        return [r.task_type, r.task_id]


@case("cluster", replicas=0)
def cluster_spec(t):
    S = t.tf.train.ClusterSpec
    c = S({"worker": ["a:1", "b:1"], "ps": {0: "c:1", 2: "d:1"}})
    return [
        sorted(c.jobs),
        c.num_tasks("worker"),
        c.num_tasks("ps"),
        c.task_indices("ps"),
        c.task_address("ps", 2),
        c.job_tasks("worker"),
        c.as_dict()["worker"],
        {str(k): v for k, v in c.as_dict()["ps"].items()},
        c == S(c),
        bool(S({})),
        t.raises(lambda: c.task_address("worker", 5)),
        t.raises(lambda: c.num_tasks("chief")),
    ]


@case("cluster", replicas=0)
def union_with_clashing_sparse_tasks(t):
    C, S = cr(t), t.tf.train.ClusterSpec
    a = C.SimpleClusterResolver(S({"worker": {1: "a:1"}}))
    b = C.SimpleClusterResolver(S({"worker": {1: "b:1"}}))
    ok = C.UnionResolver(a, C.SimpleClusterResolver(S({"worker": {3: "b:1"}}))).cluster_spec().as_dict()
    return [{str(k): v for k, v in ok["worker"].items()}, t.raises(lambda: C.UnionResolver(a, b).cluster_spec())]


SLURM = dict(
    SLURM_PROCID="1",
    SLURM_STEP_NUM_TASKS="5",
    SLURM_STEP_TASKS_PER_NODE="2(x2),1",
    SLURM_STEP_NODELIST="t02n13,t02n41,t02n43",
)


@case("cluster", replicas=0)
def slurm_several_tasks_per_node(t):
    with environ(**SLURM):
        r = cr(t).SlurmClusterResolver(jobs={"ps": 1, "worker": 4}, gpus_per_node=2, gpus_per_task=1, auto_set_gpu=True)
        return [
            r.cluster_spec().as_dict(),
            list(r.get_task_info()),
            os.environ.get("CUDA_VISIBLE_DEVICES"),
            r.master(),
            r.num_accelerators(),
        ]


@case("cluster", replicas=0)
def slurm_explicit_arguments(t):
    with environ(SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="3", SLURM_STEP_NODELIST="n[1-3]"):
        r = cr(t).SlurmClusterResolver(
            jobs={"ps": 1, "worker": 2},
            port_base=9000,
            tasks_per_node=1,
            gpus_per_node=1,
            gpus_per_task=1,
            auto_set_gpu=False,
        )
        q = [r.cluster_spec().as_dict(), list(r.get_task_info()), r.master(), r.master("ps", 0)]
    return q


@case("cluster", replicas=0)
def slurm_from_the_environment_alone(t):
    with environ(
        SLURM_PROCID="0",
        SLURM_STEP_NUM_TASKS="3",
        SLURM_STEP_TASKS_PER_NODE="1(x3)",
        SLURM_STEP_NODELIST="h[1-3]",
        CUDA_VISIBLE_DEVICES="0",
    ):
        r = cr(t).SlurmClusterResolver()
        return [r.cluster_spec().as_dict(), list(r.get_task_info()), r.num_accelerators()]
