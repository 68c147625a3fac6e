"""Train once per scheme and plot the metric over the bits sent: python sweep.py SCHEME... -- TRAINING COMMAND"""

import json
import subprocess
import sys

from matplotlib.figure import Figure

separator = sys.argv.index("--")
schemes, training = sys.argv[1:separator], sys.argv[separator + 1 :]

figure = Figure(layout="constrained")
axes = figure.subplots()
print(f"{'scheme':30} {'Mbit per worker':>15} {'last':>7} {'best':>7}")
for scheme in schemes:
    done = subprocess.run([*training, "--scheme", scheme, "--json"], stdout=subprocess.PIPE, check=True)
    report = json.loads(done.stdout)
    bits = [point["bits"] / 1e6 for point in report["series"]]
    metric = [point["metric"] for point in report["series"]]
    axes.plot(bits, metric, marker=".", label=scheme)
    print(f"{scheme:30} {bits[-1]:15.1f} {metric[-1]:7.4f} {report['best']:7.4f}", flush=True)

axes.set(xscale="log", xlabel="Mbit sent per worker", ylabel=report["metric"])
axes.set_title(f"{report['app']}: {report['metric']} over traffic, {report['settings']['workers']} workers")
axes.legend(frameon=False)
axes.grid(alpha=0.3)
figure.savefig("sweep.png", dpi=120)
