"""JAX gradients through DLPack: mpirun -n 2 python jax_dlpack.py"""

import jax
import jax.numpy as jnp
import numpy as np
from mpi4py import MPI

import mpicomp

comm = mpicomp.Comm(MPI.COMM_WORLD)
reducer = mpicomp.Reducer(comm, "topk:density=0.05")


@jax.jit
def gradient(weights, rows, targets):
    return jax.grad(lambda w: jnp.mean((rows @ w - targets) ** 2))(weights)


random = np.random.default_rng(comm.rank)  # other data on every rank
truth = np.linspace(-1, 1, 200, dtype=np.float32)
weights = jnp.zeros(200, jnp.float32)
for _ in range(400):
    rows = random.standard_normal((64, 200), np.float32)
    mean = reducer.reduce(gradient(weights, rows, rows @ truth))  # read in place; the mean is a fresh NumPy array
    weights = weights - 0.05 * jnp.from_dlpack(mean)  # which JAX may keep

if comm.rank == 0:
    print(f"relative error {np.linalg.norm(weights - truth) / np.linalg.norm(truth):.1e}")
