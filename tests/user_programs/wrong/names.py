"""Names of `mirrored` that do not exist. A checker must report each line that says so, and no other."""

import mirrored.tf.reductions  # error

import mirrored as mr
from mirrored import MiroredStrategy  # error  # noqa: F401
from mirrored.data import Datset  # error  # noqa: F401

strategy = mr.MirroredStrategy(["CPU:0"])
tape = mr.GradientTape()
v = mr.Variable(1.0)
print(mr.MiroredStrategy())  # error
print(mr.nonsense.thing)  # error
print(mr.Gradienttape)  # error
print(mr.functions)  # error
print(mr.mirrored)  # error
print(mr.data.Datset)  # error
print(mr.data.Dataset.from_tensor_slice([1]))  # error
print(mr.data.Dataset.range(3).bach(2))  # error
print(mr.optimizers.Adamm(0.1))  # error
print(mr.optimizers.SGD(0.1).apply_gradient([]))  # error
print(mr.checkpoint.Chekpoint)  # error
print(mr.checkpoint.CheckpointManger)  # error
print(mr.cluster.ClusterSpek)  # error
print(mr.collectives.AllRedoce)  # error
print(mr.losses.average_los(1.0))  # error
print(mr.testing.Wayy)  # error
print(mr.config.set_virtual_device(2))  # error
print(mr.errors.NoSuchError)  # error
print(mr.errors.SynchronyError)  # error
print(mr.ReduceOp.SUMM)  # error
print(mr.VariableAggregation.SUMM)  # error
print(mr.VariableSynchronization.ON_WRIT)  # error
print(mr.UnconnectedGradients.ZEROS)  # error
print(strategy.runn(print))  # error
value: mr.PerReplica = strategy.run(lambda: mr.PerReplica((1.0,)))
print(value.valeus)  # error
print(mr.ReduceOp("sum").nane)  # error
print(strategy.scop())  # error
print(strategy.num_replicas)  # error
print(strategy.experimental_distribute_datasets([]))  # error
print(tape.gradients(1, 2))  # error
print(v.asign(2.0))  # error
print(v.trainabel)  # error
print(mr.get_strategy().reduc)  # error
