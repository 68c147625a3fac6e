"""Results of single runs, kept in files: an interrupted experiment continues, and a report needs no run."""

import json
import os
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from zlib import crc32


class Runs:
    """Runs by their settings, each computed once.

    Parameters
    ----------
    folder : Path
        Folder of the results, one JSON file per run.
    compute : callable
        Settings -> result, plain values; of a module's top level, for it may run in other processes.
    jobs : int
        Runs at a time, each a process; 0: none is started, only what is there is used.
    """

    def __init__(self, folder, compute, jobs=1):
        self.folder, self.compute, self.jobs = Path(folder), compute, jobs
        self.folder.mkdir(parents=True, exist_ok=True)

    def all(self, many):
        """Settings -> the results in their order; None for a missing run if runs are not started."""
        missing = [one for one in many if not self._path(one).exists()]
        if self.jobs and missing:
            self._fill(missing)
        return [self._read(one) for one in many]

    def _fill(self, missing):
        start = time.monotonic()
        for done, (settings, result) in enumerate(self._computed(missing), 1):
            self._write(settings, result)
            print(f"{done}/{len(missing)} runs, {time.monotonic() - start:.0f} s: {named(settings)}",
                  file=sys.stderr, flush=True)

    def _computed(self, missing):
        """(settings, result) as they come."""
        if self.jobs == 1:  # here: starting a process takes longer than a quick run
            yield from ((one, timed(self.compute, one)) for one in missing)
            return
        with ProcessPoolExecutor(min(self.jobs, len(missing)), get_context("spawn")) as pool:
            started = {pool.submit(timed, self.compute, one): one for one in missing}
            yield from ((started[future], future.result()) for future in as_completed(started))

    def _path(self, settings):
        text = json.dumps(settings, sort_keys=True)
        return self.folder / f"{named(settings)[:80]}-{crc32(text.encode()):08x}.json"

    def _read(self, settings):
        path = self._path(settings)
        return json.loads(path.read_text())["result"] if path.exists() else None

    def _write(self, settings, result):
        path = self._path(settings)
        part = path.with_suffix(f".{os.getpid()}")  # other processes may look while we write
        part.write_text(json.dumps({"settings": settings, "result": result}))
        part.replace(path)


def timed(compute, settings):
    """The result, and what it took: the machine's load tells whether the seconds mean anything."""
    wall, cpu = time.monotonic(), time.process_time()
    result = compute(settings)
    cost = {"wall_s": time.monotonic() - wall, "cpu_s": time.process_time() - cpu, "load": os.getloadavg()[0]}
    return {**result, "cost": cost}


def named(settings):
    """A file name that a reader recognises."""
    text = "-".join(f"{key}={value}" for key, value in settings.items() if value is not None)
    return re.sub(r"[^A-Za-z0-9.=_-]+", "_", text)
