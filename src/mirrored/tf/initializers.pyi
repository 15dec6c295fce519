"""Type stub of `tf.initializers`, written by tools/tf_stubs.py."""

from mirrored.tf._initializers import Constant as Constant
from mirrored.tf._initializers import GlorotNormal as GlorotNormal
from mirrored.tf._initializers import GlorotUniform as GlorotUniform
from mirrored.tf._initializers import HeNormal as HeNormal
from mirrored.tf._initializers import HeUniform as HeUniform
from mirrored.tf._initializers import Identity as Identity
from mirrored.tf._initializers import LecunNormal as LecunNormal
from mirrored.tf._initializers import LecunUniform as LecunUniform
from mirrored.tf._initializers import Ones as Ones
from mirrored.tf._initializers import Orthogonal as Orthogonal
from mirrored.tf._initializers import RandomNormal as RandomNormal
from mirrored.tf._initializers import RandomUniform as RandomUniform
from mirrored.tf._initializers import TruncatedNormal as TruncatedNormal
from mirrored.tf._initializers import VarianceScaling as VarianceScaling
from mirrored.tf._initializers import Zeros as Zeros

constant = Constant
glorot_normal = GlorotNormal
glorot_uniform = GlorotUniform
he_normal = HeNormal
he_uniform = HeUniform
identity = Identity
lecun_normal = LecunNormal
lecun_uniform = LecunUniform
ones = Ones
orthogonal = Orthogonal
random_normal = RandomNormal
random_uniform = RandomUniform
truncated_normal = TruncatedNormal
variance_scaling = VarianceScaling
zeros = Zeros
