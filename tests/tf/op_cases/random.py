"""`tf.random`: the numbers are JAX's, so shapes, ranges and moments are what can be said of them."""

from __future__ import annotations

import numpy as np

from tf.op_cases import case, f


def drawn(shape, low=-np.inf, high=np.inf, mean=None, within=0.15):
    def check(result):
        array = np.asarray(result)
        fits = array.shape == shape and array.min() >= low and array.max() < high
        return bool(fits and (mean is None or abs(array.mean() - mean) < within))

    return check


def shuffled(result):
    return sorted(np.asarray(result).tolist()) == list(range(100)) and np.asarray(result).tolist() != list(range(100))


def draws(generator):
    return np.asarray(generator.normal([3])).shape == (3,)


def candidates(count, unique, inside):
    """Different ones if they must be, from the classes that can come, with the counts that are expected of them."""

    def check(result):
        sampled, of_true, of_sampled = (np.asarray(one) for one in result)
        different = len(set(sampled.tolist())) == count
        shapes = (sampled.shape, of_true.shape, of_sampled.shape) == ((count,), (2, 1), (count,))
        return shapes and set(sampled.tolist()) <= set(inside) and (different or not unique) and of_sampled.min() > 0

    return check


N = 2000
TRUE = np.array([[1], [4]], np.int32)

CASES = [
    case("random.normal", drawn((N,), mean=1.0), [N], mean=1.0),
    case("random.truncated_normal", drawn((N,), -2, 2, mean=0.0), [N]),
    case("random.uniform", drawn((N, 1), 2, 4, mean=3.0), [N, 1], minval=2, maxval=4),
    case("random.uniform", drawn((N,), 0, 10, mean=4.5, within=0.5), [N], maxval=10, dtype="int32"),
    case("random.shuffle", shuffled, np.arange(100)),
    case("random.categorical", drawn((2, N), 0, 2), np.log(f([[0.5, 0.5], [0.5, 0.5]])), N),
    case("random.gamma", drawn((N, 2), 0, mean=2.0, within=0.3), [N], alpha=f(2, 2)),
    case("random.poisson", drawn((N, 2), 0, mean=3.0, within=0.3), [N], lam=f(3, 3)),
    case("random.stateless_normal", drawn((N,), mean=0.0), [N], seed=[1, 2]),
    case("random.stateless_truncated_normal", drawn((N,), -4, 4, mean=0.0), [N], seed=[1, 2], stddev=2.0),
    case("random.stateless_uniform", drawn((N,), 0, 1, mean=0.5), [N], seed=[-1, 2]),
    case("random.stateless_uniform", drawn((N,)), [N], [1, 2], minval=None, maxval=None, dtype="int32"),
    case("random.stateless_categorical", drawn((1, N), 0, 2, mean=0.75), np.log(f([[0.25, 0.75]])), N, seed=[1, 2]),
    case("random.stateless_gamma", drawn((N,), 0, mean=1.0), [N], seed=[1, 2], alpha=2.0, beta=2.0),
    case("random.stateless_poisson", drawn((N,), 0, mean=3.0, within=0.3), [N], seed=[1, 2], lam=3.0),
    case("random.stateless_binomial", drawn((N,), 0, 11, mean=5.0, within=0.3), [N], [1, 2], counts=10.0, probs=0.5),
    case("random.experimental.stateless_shuffle", shuffled, np.arange(100), seed=[1, 2]),
    case("random.split", drawn((3, 2)), [1, 2], num=3),
    case("random.fold_in", drawn((2,)), [1, 2], 7),
    case("random.create_rng_state", [0, 5, 0], 5),
    case("random.log_uniform_candidate_sampler", candidates(6, True, range(9)), TRUE, 1, 6, True, 9),
    case("random.uniform_candidate_sampler", candidates(30, False, range(9)), TRUE, 1, 30, False, 9, seed=3),
    case(
        "random.fixed_unigram_candidate_sampler",
        candidates(4, True, range(2, 6)),
        *(TRUE, 1, 4, True, 6),
        unigrams=(1, 2, 3, 4),
        num_reserved_ids=2,
        distortion=0.75,
    ),
    case("random.Generator", draws, state=np.array([0, 1, 0], np.uint32), traced=False),
    case("random.set_seed", lambda found: found is None, 7, traced=False),
    case("random.get_global_generator", draws, traced=False),
]
