"""Kill a tracing rank again and again: every journal must be readable, and hold every record that was acknowledged.

    python tests/soak/soak_trace.py [--count 300]

The child records events and flushes after each batch; then it says on its output how many it has flushed: these are
acknowledged. It is killed by SIGKILL at a random time, and the journal is recovered into HDF5 and checked.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

CHILD = """
import sys, os
from mpicomp.trace import Recorder
class Solo:
    rank, size = 0, 1
    def fail_together(self, error=None):
        if error is not None: raise error
recorder = Recorder(Solo(), sys.argv[1])
step = 0
while True:
    for _ in range(int(sys.argv[2])):
        recorder.event("compute", recorder.now(), step=step); step += 1
    recorder.flush()
    os.write(1, b"%d\\n" % step)
"""


def one(batch: int, wait: float) -> str:
    """One kill; what became of the records."""
    from mpicomp.trace import open_trace, recover, validate

    with tempfile.TemporaryDirectory(prefix="mpicomp-soak-") as folder:
        path = Path(folder) / "run.h5"
        child = subprocess.Popen([sys.executable, "-c", CHILD, str(path), str(batch)], stdout=subprocess.PIPE)
        acknowledged = int(child.stdout.readline())
        time.sleep(wait)
        child.send_signal(signal.SIGKILL)
        rest = child.stdout.read().split(b"\n")[:-1]
        child.wait()
        acknowledged = int(rest[-1]) if rest else acknowledged
        recover(f"{path}.spool", path)
        if validate(path):
            return "invalid"
        with open_trace(path) as trace:
            steps = trace.events("step")["step"].tolist()
    if steps[:acknowledged] != list(range(acknowledged)) or steps != list(range(len(steps))):
        return f"lost: {acknowledged} acknowledged, {len(steps)} there"
    return "all there"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options = parser.parse_args()
    rng, outcomes = random.Random(options.seed), Counter()
    print(f"seed {options.seed}, process {os.getpid()}", flush=True)
    for number in range(options.count):
        try:
            outcomes[one(rng.choice([1, 10, 500, 5000]), rng.uniform(0, 0.3))] += 1
        except Exception as error:
            outcomes[f"unreadable: {error}"] += 1
        if (number + 1) % 25 == 0:
            print(f"{number + 1} kills: {dict(outcomes)}", flush=True)
    print(json.dumps({"kills": options.count, **outcomes}))
    return 0 if outcomes["all there"] == options.count else 1


if __name__ == "__main__":
    sys.exit(main())
