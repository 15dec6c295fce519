"""Arguments of `mirrored` that do not exist, or are missing."""

from __future__ import annotations

import mirrored as mr

strategy = mr.MirroredStrategy(["CPU:0"])
dataset = mr.data.Dataset.range(3)
v = mr.Variable(1.0)
print(mr.Variable(1.0, trainabel=True))  # error
print(mr.Variable(1.0, aggregate=mr.VariableAggregation.SUM))  # error
print(mr.GradientTape(persistant=True))  # error
print(mr.MirroredStrategy(device=["CPU:0"]))  # error
print(mr.MirroredStrategy(["CPU:0"], replicas=2))  # error
print(mr.optimizers.Adam(lr=0.1))  # error
print(mr.optimizers.Adam(0.1, beta1=0.9))  # error
print(mr.optimizers.Adam(0.1, clip_norm=1.0))  # error
print(mr.optimizers.Adam(0.1, clipnorm="1"))  # error
print(mr.optimizers.SGD(0.1, momentun=0.9))  # error
print(mr.optimizers.AdamW(0.1, decay=0.1))  # error
print(mr.optimizers.Adagrad(0.1, rho=0.9))  # error
print(mr.optimizers.RMSprop(0.1, centred=True))  # error
print(mr.optimizers.Lion(0.1, epsilon=0.1))  # error
print(mr.optimizers.Lamb(0.1, amsgrad=True))  # error
print(mr.optimizers.Momentum(0.1, beta_1=0.1))  # error
print(mr.optimizers.SGD(0.1).apply_gradients())  # error
print(strategy.run(print, arg=(1,)))  # error
print(strategy.reduce(mr.ReduceOp.SUM, 1.0))  # error
print(strategy.reduce(mr.ReduceOp.SUM, 1.0, axes=None))  # error
print(strategy.gather(1.0))  # error
print(mr.GradientTape().gradient(1.0))  # error
print(mr.GradientTape().gradient(1.0, [v], unconnected="zero"))  # error
print(dataset.shuffle(2, sead=1))  # error
print(dataset.shuffle())  # error
print(mr.losses.average_loss(1.0, batch_size=3))  # error
print(mr.config.set_virtual_devices(2, kinds="GPU"))  # error
print(mr.config.set_virtual_devices("2"))  # error
print(mr.checkpoint.CheckpointManager(mr.checkpoint.Checkpoint(v=v)))  # error
print(mr.cluster.ClusterSpec())  # error
print(mr.collectives.HierarchicalCopyAllReduce(packs=2))  # error
print(mr.stop_gradient())  # error
