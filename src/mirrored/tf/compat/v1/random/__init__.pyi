"""Type stub of `tf.compat.v1.random`, written by tools/tf_stubs.py."""

from mirrored.tf.compat.v1.random import experimental as experimental
from mirrored.tf.random import Algorithm as Algorithm
from mirrored.tf.random import Generator as Generator
from mirrored.tf.random import all_candidate_sampler as all_candidate_sampler
from mirrored.tf.random import categorical as categorical
from mirrored.tf.random import create_rng_state as create_rng_state
from mirrored.tf.random import fixed_unigram_candidate_sampler as fixed_unigram_candidate_sampler
from mirrored.tf.random import fold_in as fold_in
from mirrored.tf.random import gamma as gamma
from mirrored.tf.random import get_global_generator as get_global_generator
from mirrored.tf.random import log_uniform_candidate_sampler as log_uniform_candidate_sampler
from mirrored.tf.random import normal as normal
from mirrored.tf.random import set_global_generator as set_global_generator
from mirrored.tf.random import shuffle as shuffle
from mirrored.tf.random import split as split
from mirrored.tf.random import stateless_binomial as stateless_binomial
from mirrored.tf.random import stateless_categorical as stateless_categorical
from mirrored.tf.random import stateless_gamma as stateless_gamma
from mirrored.tf.random import stateless_normal as stateless_normal
from mirrored.tf.random import stateless_poisson as stateless_poisson
from mirrored.tf.random import stateless_truncated_normal as stateless_truncated_normal
from mirrored.tf.random import stateless_uniform as stateless_uniform
from mirrored.tf.random import truncated_normal as truncated_normal
from mirrored.tf.random import uniform as uniform
from mirrored.tf.random import uniform_candidate_sampler as uniform_candidate_sampler
