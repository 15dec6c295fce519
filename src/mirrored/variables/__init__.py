"""Distributed variables: mirrored across replicas, or with one component per replica."""

from mirrored.variables.component import VariableComponent as VariableComponent
from mirrored.variables.copying import Reference as Reference
from mirrored.variables.creation import variable_creator_scope as variable_creator_scope
from mirrored.variables.rules import VariableAggregation as VariableAggregation
from mirrored.variables.rules import VariableSynchronization as VariableSynchronization
from mirrored.variables.variable import DistributedVariable as DistributedVariable
from mirrored.variables.variable import Variable as Variable
