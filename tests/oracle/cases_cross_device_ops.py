# ruff: noqa
"""CrossDeviceOps objects, used directly and inside a strategy."""

from oracle import case

ALL = ["ReductionToOneDevice", "HierarchicalCopyAllReduce", "NcclAllReduce"]


def ops(t, **kw):
    return getattr(t.tf.distribute, t.p)(**kw)


@case("cross_device_ops", replicas=(2, 4), params=ALL)
def reduce_to_the_same_devices(t):
    R, op = ops(t), t.tf.distribute.ReduceOp
    x = t.strategy.run(lambda: t.fid() + 1.0)
    if t.p == "NcclAllReduce":
        return t.out(R.reduce(op.SUM, x, destinations=t.devices[0]))
    return [t.local(R.reduce(op.SUM, x, destinations=x)), t.local(R.reduce(op.MEAN, x, destinations=x))]


@case("cross_device_ops", params=ALL[:2])
def batch_reduce(t):
    R, op = ops(t), t.tf.distribute.ReduceOp
    x, y = t.strategy.run(lambda: (t.fid() + 1.0, t.tf.ones([2]) * t.fid()))
    r = R.batch_reduce(op.SUM, [(x, x), (y, y)])
    q = R.batch_reduce(op.MEAN, [(x, x), (y, y)])
    return [[t.local(a) for a in r], [t.local(a) for a in q]]


@case("cross_device_ops", params=ALL)
def invalid_arguments(t):
    R, op = ops(t), t.tf.distribute.ReduceOp
    x = t.strategy.run(t.fid)
    return [
        t.raises(lambda: R.reduce("SUM", x, destinations=t.devices[0])),
        t.raises(lambda: R.reduce(op.SUM, x, destinations=None)),
        t.raises(lambda: R.batch_reduce(op.SUM, [x])),
    ]


@case("cross_device_ops")
def reduction_device_and_accumulator(t):
    R = t.tf.distribute.ReductionToOneDevice(reduce_to_device=t.devices[1], accumulation_fn=t.tf.add_n)
    x = t.strategy.run(lambda: t.fid() + 1.0)
    op = t.tf.distribute.ReduceOp
    return [t.local(R.reduce(op.SUM, x, destinations=x)), t.out(R.reduce(op.MEAN, x, destinations=t.devices[0]))]


@case("cross_device_ops")
def plain_tensor_passes_through(t):
    R = t.tf.distribute.ReductionToOneDevice()
    return t.out(R.reduce(t.tf.distribute.ReduceOp.SUM, t.tf.constant(2.0), destinations=t.devices[0]))


@case("cross_device_ops", replicas=0, isolate=True, params=["Reduction-2", "Hierarchical-2", "Hierarchical-4"])
def strategy_with_chosen_operations(t):
    name, n = t.p.split("-")
    D = t.tf.distribute
    c = D.ReductionToOneDevice() if name == "Reduction" else D.HierarchicalCopyAllReduce()
    s = t.mkstrategy(int(n), cross_device_ops=c)
    with s.scope():
        v = t.tf.Variable(1.0, aggregation=t.tf.VariableAggregation.MEAN)
    x = s.run(lambda: t.fid() + 1.0)
    s.run(lambda: v.assign_add(t.fid()))
    return [
        t.out(s.reduce("SUM", x, axis=None)),
        t.out(s.run(lambda: t.ctx().all_reduce("MEAN", t.fid() + 1.0))),
        t.out(s.gather(s.run(lambda: t.tf.fill([1], t.rid())), axis=0)),
        t.out(v),
    ]


@case("cross_device_ops", replicas=0)
def communication_options(t):
    E = t.tf.distribute.experimental
    o = E.CommunicationOptions()
    p = E.CommunicationOptions(
        bytes_per_pack=10, timeout_seconds=2.0, implementation=E.CommunicationImplementation.RING
    )
    return [
        o.bytes_per_pack,
        o.timeout_seconds,
        o.implementation.name,
        p.bytes_per_pack,
        p.timeout_seconds,
        p.implementation.name,
        t.raises(lambda: E.CommunicationOptions(bytes_per_pack=-1)),
        [i.name for i in E.CommunicationImplementation],
    ]


@case("cross_device_ops", replicas=0, params=ALL)
def class_relations(t):
    return [
        issubclass(getattr(t.tf.distribute, t.p), t.tf.distribute.CrossDeviceOps),
        isinstance(ops(t), t.tf.distribute.CrossDeviceOps),
    ]
