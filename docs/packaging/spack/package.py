"""Spack's recipe: copy it to packages/py-mpicomp/package.py of a repository of your own (see docs/packaging.md)."""

# ruff: noqa: F403, F405  (Spack offers its words this way)
from spack.package import *


class PyMpicomp(PythonPackage):
    """MPI all-reduce and gradient compression for NumPy, CuPy and PyTorch arrays."""

    license("BSD-3-Clause")

    version("0.1.0")  # the sources are a checkout: spack develop --path CHECKOUT py-mpicomp@0.1.0

    variant("plot", default=False, description="Pictures of benches and traces")
    variant("cuda", default=False, description="Arrays in GPU memory")

    depends_on("cxx", type="build")
    depends_on("python@3.10:", type=("build", "run"))
    depends_on("py-setuptools@70.1:", type="build")
    depends_on("py-pybind11@2.12:", type="build")
    depends_on("mpi", type=("build", "run"))
    depends_on("py-mpi4py@4.0:", type=("build", "run"))
    depends_on("py-numpy@1.24:", type=("build", "run"))
    depends_on("py-h5py@3.10:", type=("build", "run"))
    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-rich@13:", type=("build", "run"))
    depends_on("py-matplotlib@3.7:", type=("build", "run"), when="+plot")
    depends_on("py-cupy@13:", type=("build", "run"), when="+cuda")
