"""The papers' experiments on real data, beside what was published or is expected.

    python tests/fidelity/run.py [EXPERIMENT ...] [--seeds 2] [--jobs 2] [--quick] [--write]

Single runs are kept in out/fidelity and not repeated: a run that was cut goes on. ``--write`` puts tables, pictures
and raw numbers into docs/; ``--jobs 0`` starts nothing and reports what there is.
"""

import argparse
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE))
os.environ.setdefault("OMP_NUM_THREADS", "1")
import report  # noqa: E402  (a script's own folder, not a package)
from cache import Runs  # noqa: E402
from convex_problems import gisette, madelon  # noqa: E402
from jobs import DATA, compute  # noqa: E402
from networks import EXPERIMENTS as NETWORKS  # noqa: E402
from torch_networks import EXPERIMENTS as TORCH_NETWORKS  # noqa: E402

from mpicomp.errors import MpicompError  # noqa: E402

EXPERIMENTS = {"madelon": madelon, "gisette": gisette, **NETWORKS, **TORCH_NETWORKS}


def main(arguments=None):
    """Run what was asked for; the exit status is 1 where a goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", choices=[*EXPERIMENTS, []], metavar="EXPERIMENT",
                        help=f"default: all; {', '.join(EXPERIMENTS)}")
    parser.add_argument("--seeds", type=int, default=2, help="how many: 0, 1, ...")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time; 0: only report what there is")
    parser.add_argument("--quick", action="store_true", help="a try-out on less: not a figure")
    parser.add_argument("--folder", type=Path, default=ROOT / "out" / "fidelity", help="where runs are kept")
    parser.add_argument("--write", action="store_true", help="tables, pictures and raw numbers into docs/")
    options = parser.parse_args(arguments)
    if options.quick and options.write:
        parser.error("--write is for figures, and --quick gives none")
    if options.jobs and not options.quick and not DATA.is_dir():
        parser.error(f"no data in {DATA}: name the folder of the data sets by MPICOMP_DATA, or try --quick")
    runs = Runs(options.folder, compute, options.jobs)
    done = {}
    try:
        for name in options.experiments or EXPERIMENTS:
            done[name] = experiment = EXPERIMENTS[name](runs, range(options.seeds), options.quick)
            print(f"\n### {name}: {EXPERIMENTS[name].__doc__}\n\n{report.text(experiment)}", flush=True)
    except MpicompError as error:  # PyTorch, or a data set, is not there
        parser.error(str(error))
    if options.write:
        report.write(ROOT / "docs", done)
    return int(any("MISSED" in report.text(experiment) for experiment in done.values()))


if __name__ == "__main__":
    sys.exit(main())
