"""A real Slurm on emulated hosts: munge, a controller and one slurmd per host, all removed afterwards.

    python tests/cluster/slurm.py -- sbatch --wait JOB.sbatch   bring it up, run a command in host 0, take it down

Nothing outside the hosts' work directory is written: the daemons get their configuration by SLURM_CONF, and a private
mount provides files with fixed paths. The daemons live in the hosts' namespaces, so whatever removes those
(the end of the owner, or `hosts.py clean` after its death) ends them and every job.
"""

import shutil
import subprocess
import sys
import time
from math import ceil
from pathlib import Path

import hosts
from progress import PATIENCE_S, slowed

TOOLS = ("slurmctld", "slurmd", "munged", "mungekey", "sbatch", "srun")
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE")
PMIX = Path("/usr/lib/x86_64-linux-gnu/pmix2/lib")  # where Debian's Slurm looks for libpmix.so

# Two ways differ from a real site's: failures are noticed in seconds instead of minutes, and a requeued job waits five
# seconds (`cred_expire`) instead of two minutes. Ranks share the host's one core (`config_overrides` lets it say two).
SLURM_CONF = """
ClusterName=mpicomp
SlurmctldHost=node0
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool/%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
MpiDefault=none
SlurmdTimeout={node_timeout}
MessageTimeout={message_timeout}
KillWait=2
ReturnToService=2
GresTypes=gpu
NodeName=node[0-{last}] CPUs=2 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
CGROUP_CONF = """
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
"""
# What a host has for itself: temporary files (PMIx's sockets would meet there), and a libpmix.so, which Debian leaves
# to its development package.
PRIVATE = """
mount -t tmpfs tmpfs {directory}/private && mount --bind {directory}/pmix {pmix} || exit 1
exec "$@"
"""


def missing():
    """Return the Debian packages' tools that are not there."""
    return [tool for tool in TOOLS if shutil.which(tool) is None] + ([] if PMIX.is_dir() else ["libpmix2"])


def why_unavailable():
    """Return why Slurm cannot be brought up here, or None."""
    reason = hosts.why_unavailable()
    if reason is None and missing():
        reason = f"needs {', '.join(missing())}: MPICOMP_APT=1 python tests/debian.py slurm installs it"
    return reason


class Slurm(hosts.Hosts):
    """Emulated hosts with a Slurm that runs jobs on them; its parameters are those of `Hosts`."""

    def __enter__(self):
        reason = why_unavailable()
        if reason:
            raise hosts.Unavailable(reason)
        self.daemons = {}
        super().__enter__()
        try:
            self._configure()
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def close(self):
        """Kill the daemons and what they run, and remove the hosts."""
        super().close()
        for daemon in self.daemons.values():
            daemon.wait()

    def environment(self):
        """Return the environment of client commands, which jobs inherit."""
        return {
            **super().environment(),
            "SLURM_CONF": str(self.directory / "slurm.conf"),
            "TMPDIR": str(self.directory / "private"),
            # No network but the hosts' own; ranks that wait make room for those that share their core.
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "tcp,self,sm",
            "OMPI_MCA_btl_tcp_if_include": "eth0",
            "OMPI_MCA_mpi_yield_when_idle": "1",
        }

    def start(self, name, command, **options):
        """Start a command in a host, as `Hosts.start`, with what a host has for itself in place."""
        return super().start(name, ["sh", self.directory / "private.sh", *command], **options)

    def _configure(self):
        here = self.directory
        for name in ("munge", "state", "spool", "private"):
            (here / name).mkdir(mode=0o755)
        values = {"directory": here, "last": len(self.names) - 1, "pmix": PMIX}
        values |= {"node_timeout": ceil(float(slowed(6))), "message_timeout": ceil(float(slowed(4)))}
        (here / "slurm.conf").write_text(SLURM_CONF.format(**values))
        (here / "cgroup.conf").write_text(CGROUP_CONF)
        (here / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")  # to be asked for only
        (here / "mpi.conf").write_text(f"PMIxCliTmpDirBase={here}/private\n")
        (here / "private.sh").write_text(PRIVATE.format(**values))
        shutil.copytree(PMIX, here / "pmix", symlinks=True)
        library = here / "pmix" / "libpmix.so"
        if not library.exists():  # libpmix-dev brings it
            library.symlink_to("libpmix.so.2")

    def _start(self):
        munge = self.directory / "munge"
        subprocess.run(["mungekey", "--create", f"--keyfile={munge}/key"], check=True, timeout=PATIENCE_S)
        files = [f"--{what}-file={munge}/{what}" for what in ("key", "pid", "log", "seed")]
        self._daemon("munged", "node0", ["munged", "--foreground", "--force", f"--socket={munge}/socket", *files])
        self.until(lambda: (munge / "socket").exists(), "munged opens its socket")
        self._daemon("slurmctld", "node0", ["slurmctld", "-D"])
        for name in self.names:
            self.start_node(name)
        self.until(self.all_up, "all nodes are up")

    def start_node(self, name):
        """Start a node's slurmd, as after a boot: sockets of killed steps are gone, which a requeued job would meet."""
        spool = self.directory / "spool" / name
        shutil.rmtree(spool, ignore_errors=True)
        spool.mkdir()
        self._daemon(name, name, ["slurmd", "-D", "-N", name])

    def kill_node(self, name):
        """Kill everything on a node: slurmd, steps, ranks."""
        hosts.kill_inside([self.owner + name])

    def set_link(self, name, state):
        """Cut a node's cable (`"down"`) or mend it (`"up"`)."""
        hosts.ip(f"-n {self.owner}switch link set port{self.names.index(name)} {state}")

    def _daemon(self, name, host, command):
        with (self.directory / f"{name}.out").open("w") as output:
            self.daemons[name] = self.start(host, command, stdout=output, stderr=output)

    def until(self, holds, what, ended_too=()):
        """Wait until `holds()`; raise `hosts.Unavailable` when that takes too long or another daemon has ended."""
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            ended = {name for name, daemon in self.daemons.items() if daemon.poll() is not None} - {*ended_too}
            if ended or time.monotonic() > deadline:
                after = f"not within {PATIENCE_S:.0f} s; ended: {ended or 'none'}"
                raise hosts.Unavailable(f"{what}: {after}\n{self.logs()}")
            time.sleep(0.1)

    def logs(self, lines=15):
        """Return the last lines of what the daemons wrote, as text."""
        paths = sorted(self.directory.glob("*.out"))
        texts = {path: path.read_text(errors="replace").splitlines()[-lines:] for path in paths}
        return "\n".join("\n".join([f"--- {path.name}", *text]) for path, text in texts.items() if text)

    def all_up(self):
        """Tell whether every node answers and takes jobs."""
        done = self.command("sinfo", "--noheader", "--Node", "--format=%t", check=False)
        states = done.stdout.split()
        return len(states) == len(self.names) and {*states} <= {"idle", "alloc", "mix", "comp"}

    def command(self, *words, check=True, **options):
        """Run a client command in host 0 and return its `subprocess.CompletedProcess`, output as text."""
        process = self.start("node0", words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        try:
            out, err = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
            process.wait()
        if check and process.returncode:
            raise RuntimeError(f"{' '.join(map(str, words))}: exit code {process.returncode}\n{out}{err}")
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def submit(self, *words, **options):
        """Submit a job (options of sbatch, script, arguments) and return its number."""
        return self.command("sbatch", "--parsable", *words, **options).stdout.strip()

    def jobs(self, number):
        """Return what `scontrol show job` says: a dict for the job, or for each task of an array."""
        lines = self.command("scontrol", "--oneliner", "show", "job", number).stdout.splitlines()
        return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines if line]

    def wait(self, number):
        """Wait until a job is over and return `jobs(number)`; after `PATIENCE_S` cancel it and raise TimeoutError."""
        deadline = time.monotonic() + PATIENCE_S
        while any(job["JobState"] not in OVER for job in self.jobs(number)):
            if time.monotonic() > deadline:
                self.command("scancel", number)
                text = f"job {number} is not over after {PATIENCE_S:.0f} s: {self.jobs(number)}"
                raise TimeoutError(f"{text}\n{self.logs()}")
            time.sleep(0.3)
        return self.jobs(number)


def main(arguments):
    """Run the command line; return the exit status."""
    if arguments[:1] != ["--"] or len(arguments) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    reason = why_unavailable()
    if reason:
        print(f"skipped: {reason}")
        return hosts.SKIPPED
    with Slurm() as cluster:
        return cluster.start("node0", arguments[1:]).wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
