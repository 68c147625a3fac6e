"""Accuracy cost of compression in the apps on real data: metrics of ``mpicomp train`` with several schemes.

    python tests/benchmarks/bench_apps.py FIGURE... [--quick] [--ranks N] [--output FILE]     all: every figure

chars    an LSTM on tinyshakespeare: perplexity
words    an LSTM on WikiText-2: perplexity, the sizes of the total-error paper's made smaller; takes long
ratings  NeuMF on made-up ratings, there being no copy of MovieLens: hit rate and NDCG at 10
colours  ResNet-8 on the small copy of CIFAR-10: accuracy, not to be compared with papers'

Data come from MPICOMP_DATA. Metrics do not depend on the machine's load. --quick: few steps, to see that all runs.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("MPICOMP_DATA", ROOT / "../shared/data"))
BIN = Path(sys.executable).parent
SCALECOM, DGC = "scalecom:chunk=100,beta=0.1", "dgc:density=0.01 --compress-warmup 0.5"
SCHEMES = ("dense", SCALECOM, f"{SCALECOM} --compress-warmup 0.5", "topk:density=0.01", "powersgd:rank=4", DGC)
FIGURES = {  # command, epochs, epochs of --quick
    "chars": (f"language --data {DATA}/tinyshakespeare/input.txt --workers 4 --batch 16 --bptt 50", 2, 0.01),
    "words": (f"language --data {DATA}/wikitext-2 --split test --width 200 --layers 2 --dropout 0.2 --workers 4 "
              "--batch 20 --schedule step:at=4,factor=0.25", 6, 0.002),
    "ratings": ("recommend --data synthetic:users=2000,items=1000,each=30,seed=1 --workers 4 --batch 256", 10, 0.2),
    "colours": (f"vision --data {DATA}/cifar-10/cifar10_jpeg_12000.npz --network resnet8 --workers 4", 10, 0.02),
}  # fmt: skip


def trained(command: str, scheme: str, epochs: float, ranks: int) -> dict:
    """The document that a run prints."""
    words = (f"{BIN}/mpirun -n {ranks} {BIN}/python -m mpicomp.cli train {command} --epochs {epochs} --json "
             f"--scheme {scheme}")  # fmt: skip
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "OMPI_ALLOW_RUN_AS_ROOT": "1",
                   "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                   "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}  # fmt: skip
    done = subprocess.run(words.split(), env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{words}\nended with {done.returncode}:\n{done.stderr}")
    return json.loads(done.stdout)


def figure(name: str, quick: bool, ranks: int) -> list[dict]:
    command, epochs, few = FIGURES[name]
    print(f"\n## {name}: train {command}, {ranks} ranks, {few if quick else epochs} epochs, one run each\n\n"
          "| scheme | bits sent per worker | metric | best | loss |\n|---|---|---|---|---|", flush=True)  # fmt: skip
    rows = []
    schemes = SCHEMES[:2] if quick else SCHEMES
    for scheme in schemes:
        if name == "ratings" and scheme == DGC:
            continue  # it needs plain SGD, with which NeuMF learned nothing in a few epochs
        document = trained(command, scheme, few if quick else epochs, ranks)
        last = document["series"][-1]
        further = "".join(f", {key} {values[-1]:.4f}" for key, values in document["further"].items())
        print(f"| `{scheme}` | {last['bits']:.3g} | {document['metric']} {last['metric']:.4f}{further} | "
              f"{document['best']:.4f} | {last['test_loss']:.4f} |", flush=True)  # fmt: skip
        rows.append({"figure": name, "scheme": scheme, **document})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="+", choices=["all", *FIGURES])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    names = FIGURES if "all" in arguments.figures else arguments.figures
    rows = [row for name in names for row in figure(name, arguments.quick, arguments.ranks)]
    if arguments.output:
        arguments.output.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
