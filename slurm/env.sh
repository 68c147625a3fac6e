# What every job script of this folder reads first: where mpicomp and its MPI come from, threads, MPI variables. The one
# file to adapt to a site. Scripts look for it in the folder they are submitted from, or where MPICOMP_ENV says.

# 1. Modules: the MPI that mpi4py was built against, and nothing that brings another one.
#module purge
#module load python openmpi

# 2. The Python environment with mpicomp in it. Its MPI must be the one that srun --mpi=... speaks to.
#MPICOMP_VENV=$HOME/venvs/mpicomp
if [ -n "${MPICOMP_VENV:-}" ]; then source "$MPICOMP_VENV/bin/activate"; fi

# 3. Threads: one per CPU of a rank. Since Slurm 22.05 srun no longer takes that number from sbatch.
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-1}
export OMP_NUM_THREADS=$SRUN_CPUS_PER_TASK
export OPENBLAS_NUM_THREADS=$SRUN_CPUS_PER_TASK

# What srun hands on to the ranks: all that stands in this file, also after sbatch --export=NONE, which hides it.
export SLURM_EXPORT_ENV=ALL

# 4. MPI: what your site's pages recommend for its network. For example
#export OMPI_MCA_pml=ucx                        # Open MPI on InfiniBand
#export OMPI_MCA_btl_tcp_if_include=eth0        # Open MPI on Ethernet: which network
#export FI_PROVIDER=tcp FI_TCP_IFACE=eth0       # MPICH on Ethernet

# 5. mpicomp. A collective that takes longer ends the job with a report of every rank; before the time limit does.
export MPICOMP_TIMEOUT=${MPICOMP_TIMEOUT:-600}
#export MPICOMP_TUNING=$HOME/mpicomp-tuning.json   # which all-reduce is the fastest here: mpicomp tune

export PYTHONUNBUFFERED=1                       # the last lines of a killed job are in its output

# 6. When the job fails: those of its nodes whose slurmd does not answer, so that a lost node is not taken for a bug. No
# answer from this node, which lives, tells that slurmds here cannot be asked: then none is taken for lost.
lost_nodes() {
    local node port
    port=$(scontrol show config | sed -n 's/^SlurmdPort *= *\([0-9]*\).*/\1/p')
    answers "${SLURMD_NODENAME:-localhost}" "$port" || return 0
    for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
        answers "$node" "$port" || echo "$node" &
    done
    wait
}
answers() { timeout 5 bash -c "exec 3<> /dev/tcp/$1/$2" 2>/dev/null; }
say_lost_nodes() {
    local code=$? lost=
    if ((code)); then lost=$(lost_nodes | sort | xargs); fi
    if [ -n "$lost" ]; then echo "failed with lost nodes, which do not answer: $lost" >&2; fi
}
trap say_lost_nodes EXIT
