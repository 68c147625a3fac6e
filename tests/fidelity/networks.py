"""Experiments on a perceptron and Fashion-MNIST; see ``convex_problems`` for what an experiment gives.

8 workers x 32 rows, 3 epochs, SGD with momentum 0.9 and a learning rate of 0.05, unless said.
"""

from statistics import mean

from convex_problems import by_seed, each

BASE = {"kind": "mlp", "workers": 8, "batch": 32, "epochs": 3, "lr": 0.05}
ON_RANKS = {"ranks": 8}  # schemes of which one process with virtual workers is no model
QUICK = "synthetic:train=520,test=100"
DENSE_TENTH = "warmup=70,warmup_density=1,stages=1"  # a tenth of the epochs without compression, as ScaleCom has it
SCALECOM = f"scalecom:selector=top-k,density=0.01,beta=0.1,{DENSE_TENTH}"
DGC = {"scheme": "dgc:density=0.001", "compress_warmup": 1.0}  # selects in each array
DGC_WHOLE = {**DGC, "scheme": f"{DGC['scheme']},layers=whole"}

# label -> (settings, expected accuracy or a word on it)
GOALS = {
    "dense": ({"scheme": "dense"}, "0.8797 / 0.8773"),
    "ScaleCom 100x, beta 0.1, dense warm-up": ({"scheme": SCALECOM}, "within 1.0 point of dense"),
    "DGC 0.1 %, warm-up": (DGC, "0.875; within 0.5"),
    "DGC 0.1 %, warm-up, all arrays together": (DGC_WHOLE, "within 0.5"),
    "PowerSGD rank 4": ({"scheme": "powersgd:rank=4"}, "0.876; within 0.5"),
    "threshold 0.0103 (15x)": ({"scheme": "threshold:lam=0.0103"}, "0.874; within 0.6"),
}
WITHIN = {"ScaleCom 100x, beta 0.1, dense warm-up": 1.0, "DGC 0.1 %, warm-up": 0.5,
          "DGC 0.1 %, warm-up, all arrays together": 0.5, "PowerSGD rank 4": 0.5,
          "threshold 0.0103 (15x)": 0.6, "DGC, no masking": 0.5, "DGC over all arrays, no masking": 0.5,
          "DGC, 5 % of the last layer": 0.5}  # fmt: skip
OTHERS = {
    "top-k 1 %": ({"scheme": "topk-global:density=0.01"}, "0.870"),
    "CLT-k 1 %, beta 1": ({"scheme": "scalecom:selector=top-k,density=0.01"}, "0.843"),
    "CLT-k 1 %, beta 0.3": ({"scheme": "scalecom:selector=top-k,density=0.01,beta=0.3"}, "0.864"),
    "ScaleCom by chunks of 100, beta 0.1, dense warm-up":
        ({"scheme": f"scalecom:chunk=100,beta=0.1,{DENSE_TENTH}"}, ""),
    "gTop-k 1 %": ({"scheme": "gtopk:density=0.01", **ON_RANKS}, "0.869"),
    "PowerSGD rank 1": ({"scheme": "powersgd:rank=1"}, "0.827"),
    "PowerSGD rank 2": ({"scheme": "powersgd:rank=2"}, "0.867"),
    "threshold 0.0326 (90x)": ({"scheme": "threshold:lam=0.0326"}, "0.869"),
    "threshold 0.1 (578x)": ({"scheme": "threshold:lam=0.1"}, "0.864"),
    "top-k 0.1 %": ({"scheme": "topk-global:density=0.001"}, "0.862"),
    "CLT-k 0.1 %, beta 0.1": ({"scheme": "scalecom:selector=top-k,density=0.001,beta=0.1"}, "0.848"),
    "sign, one scale an array": ({"scheme": "signsgd"}, "0.77 to 0.82 with one scale for all"),
    "one bit, scale a column": ({"scheme": "onebit", **ON_RANKS}, "more than with one scale"),
    "sign, one scale an array, rate 0.01": ({"scheme": "signsgd", "lr": 0.01}, ""),
    "one bit, scale a column, rate 0.01": ({"scheme": "onebit", "lr": 0.01, **ON_RANKS}, ""),
    "QSGD 7 levels": ({"scheme": "qsgd"}, ""),
    "TernGrad": ({"scheme": "terngrad"}, ""),
    "AdaComp": ({"scheme": "adacomp"}, ""),
    "Ok-Topk 1 %": ({"scheme": "oktopk:density=0.01"}, ""),
    "ARC-Top-k 1 %": ({"scheme": "arctopk:density=0.01"}, ""),
    "ARC-Top-k 1 %, rate 0.005": ({"scheme": "arctopk:density=0.01", "lr": 0.005}, ""),
    "SIDCo 1 %": ({"scheme": "sidco:density=0.01"}, ""),
    "Gaussian-k 1 %": ({"scheme": "gaussiank:density=0.01"}, ""),
    "random-k 1 %": ({"scheme": "randomk:density=0.01"}, ""),
    "random-k 1 %, rate 0.005": ({"scheme": "randomk:density=0.01", "lr": 0.005}, ""),
    "random-k 1 %, rate 0.0005": ({"scheme": "randomk:density=0.01", "lr": 0.0005}, ""),
    "count sketch 1 %": ({"scheme": "sketchsgd:density=0.01"}, ""),
    "Strom 0.0326": ({"scheme": "strom:lam=0.0326"}, ""),
    "16-bit integers": ({"scheme": "scaled-integer"}, ""),
    "half": ({"scheme": "half"}, ""),
    "natural": ({"scheme": "natural", **ON_RANKS}, ""),
    "induced 1 %": ({"scheme": "induced:density=0.01"}, ""),
    "stochastic rounding": ({"scheme": "stochastic-rounding", **ON_RANKS}, ""),
}  # fmt: skip

MANY = 8  # seeds: the difference of two runs has a standard deviation of 0.2 points
BLOCK_CODES = {
    "dense": GOALS["dense"],
    "half": ({"scheme": "half"}, ""),
    "int8": ({"scheme": "int8"}, "within 0.2"),
    "fp8": ({"scheme": "fp8"}, "within 0.2"),
    "int4, error memory": ({"scheme": "int4:memory=residual"}, "within 0.4"),
    "int4": ({"scheme": "int4"}, ""),
}
WITHIN |= {"int8": 0.2, "fp8": 0.2, "int4, error memory": 0.4}


def goals(runs, seeds, quick):
    """The schemes whose accuracy is a goal, against dense."""
    found = trained(runs, GOALS, seeds, quick)
    expected = "the last column: prototypes, 2 seeds, and the goals in points below dense"
    return accuracy_rows(found, GOALS), found, expected


def falling_rate(runs, seeds, quick):
    """The same schemes with a learning rate that falls to zero along a cosine, so that the last step says more."""
    settings = {label: ({**extra, "schedule": "cosine"}, "") for label, (extra, _) in GOALS.items()}
    found = trained(runs, settings, seeds, quick)
    return accuracy_rows(found, settings), found, "the goals in points below dense, with less scatter"


def inputs(runs, seeds, quick):
    """Factors of dense accuracy: the images' scale and the learning rate's schedule; one worker x 256 rows."""
    cosine, own_scale = {"schedule": "cosine"}, {"per_pixel": True}
    variants = {"as the app does it": {}, "cosine": cosine, "each pixel's own scale": own_scale,
                "both": {**cosine, **own_scale}}  # fmt: skip
    alone = {"scheme": "dense", "workers": 1, "batch": 256}
    settings = {name: ({**alone, **extra}, "") for name, extra in variants.items()}
    found = trained(runs, settings, seeds, quick)
    return accuracy_rows(found, settings), found, "0.8797 / 0.8773 (prototypes, 8 workers x 32 rows)"


def schemes(runs, seeds, quick):
    """All other schemes."""
    settings = {"dense": GOALS["dense"], **OTHERS}
    found = trained(runs, settings, seeds, quick)
    return accuracy_rows(found, settings), found, "the last column, if it has a figure: prototypes, 2 seeds"


def block_codes(runs, seeds, quick):
    """Sixteen, eight and four bits per value in two hops, beside dense."""
    found = trained(runs, BLOCK_CODES, seeds if quick else range(MANY), quick)
    return accuracy_rows(found, BLOCK_CODES), found, "the goals in points below dense"


def powersgd(runs, seeds, quick):
    """Which factor PowerSGD makes orthogonal: the app's weights are inputs x outputs, PyTorch's outputs x inputs."""
    settings = {"dense": GOALS["dense"]}
    for rank, expected in {1: "0.827", 2: "0.867", 4: "0.876"}.items():
        scheme = f"powersgd:rank={rank}"
        settings[f"rank {rank}, the inputs' factor"] = ({"scheme": scheme}, expected)
        settings[f"rank {rank}, the outputs' factor"] = ({"scheme": f"{scheme},orthogonal=columns"}, expected)
    found = trained(runs, settings, seeds, quick)
    return accuracy_rows(found, settings), found, "the last column: prototypes, 2 seeds"


def low_pass(runs, seeds, quick):
    """The low-pass filter at two learning rates: accuracy, and how alike the workers' memories are."""
    settings = {f"lr {lr}, beta {beta}": ({"scheme": f"scalecom:selector=top-k,density=0.01,beta={beta}", "lr": lr,
                                           "epochs": 1, "measures": 13}, "")
                for lr in (0.02, 0.1) for beta in (1, 0.3, 0.1)}  # fmt: skip
    found = trained(runs, settings, seeds, quick)
    rows = []
    for name, results in found.items():
        row = {"leader's top-k 1 %, 1 epoch": name, "accuracy": accuracy(results), "mean": points(results)}
        row["cosine of two memories, last third"] = each(results, lambda one: late(one, "memory_cosine"), "{:.2f}")
        row["Hamming distance to own top-k"] = each(results, lambda one: late(one, "hamming"), "{:.2f}")
        rows.append(row)
    expected = ("beta < 1 keeps memories alike where the learning rate is large, and so recovers the accuracy that "
                "beta = 1 loses there; memories grow alike in training (ScaleCom, figure 2)")
    return rows, found, expected


def build_up(runs, seeds, quick):
    """The union of what n workers select, over what one selects: 1 % of 8 rows each, after 20 steps."""
    counts = (2, 4) if quick else (2, 4, 8, 16, 32, 64)
    base = {"kind": "steps", "batch": 8, "epochs": 3, "lr": 0.05, **({"steps": 6, "data": QUICK} if quick else {})}
    settings = {(name, n): {**base, "scheme": scheme, "workers": n} for n in counts for name, scheme in
                (("gathered", "topk-global:density=0.01"), ("leader", "scalecom:selector=top-k,density=0.01"))}
    found = by_seed(runs, settings, seeds)
    rows = [{"workers": n, **{f"{name}: union / k": each(found[name, n], lambda one, n=n: n * one["build_up"])
                              for name in ("gathered", "leader")}} for n in counts]
    expected = ("the gathered set grows towards n (prototypes of other networks: 6.9 at 1 % on 8 workers), the "
                "leader's stays 1 (ScaleCom)")
    return rows, {f"{name} {n}": results for (name, n), results in found.items()}, expected


def accordion(runs, seeds, quick):
    """ACCORDION between 1 % and 10 %, against both fixed, in each array."""
    scheme = "accordion:density=0.01,high=0.1,interval=117"
    settings = {"top-k 1 %": ({"scheme": "topk:density=0.01"}, ""), "top-k 10 %": ({"scheme": "topk:density=0.1"}, ""),
                "ACCORDION 1 % / 10 %": ({"scheme": scheme}, "")}
    found = trained(runs, settings, seeds, quick)
    expected = ("nearly the accuracy of the high density with less data (ResNet-18, CIFAR-10: 93.78 against 93.08 and "
                "94.09; decisions every 10 epochs there, every half epoch here)")
    return accuracy_rows(found, settings), found, expected


def dgc(runs, seeds, quick):
    """DGC at 0.1 % with and without its parts."""
    uncorrected = {"scheme": "topk:density=0.001", "compress_warmup": 1.0}
    settings = {"all": (DGC, ""), "no warm-up": ({"scheme": DGC["scheme"]}, ""),
                "no masking": ({**DGC, "scheme": DGC["scheme"] + ",masking=no"}, ""),
                "no momentum correction": (uncorrected, "")}
    found = trained(runs, settings, seeds, quick)
    return accuracy_rows(found, settings), found, "each part helps (DGC, sections 3.2 and 3.3); 0.875 with all"


def dgc_causes(runs, seeds, quick):
    """Changes that might bring DGC at 0.1 % nearer to dense."""
    scheme = DGC["scheme"]
    settings = {"dense": (GOALS["dense"][0], ""), "DGC as the goal has it": (DGC, ""),
                "memories delivered after the last step": ({**DGC, "deliver": True}, ""),
                "all arrays selected together": (DGC_WHOLE, ""),
                "biases dense": ({**DGC, "scheme": f"{scheme},dense=1d"}, ""),
                "gradients clipped to 4": ({**DGC, "clip": 4.0}, ""),
                "warm-up over half of the run": ({**DGC, "compress_warmup": 1.5}, "")}  # fmt: skip
    found = trained(runs, settings, seeds, quick)
    return accuracy_rows(found, settings), found, "within 0.5 points of dense; published runs have 90 epochs and more"


def left_out(runs, seeds, quick):
    """Settings of the papers that the goals leave out, with a falling learning rate."""
    variants = {"dense": {"scheme": "dense"}, "dense, the rate warmed up": {"scheme": "dense", "warmup": 1.0},
                "ScaleCom as the goal has it": {"scheme": SCALECOM},
                "ScaleCom, the rate warmed up": {"scheme": SCALECOM, "warmup": 0.3},
                "ScaleCom, biases dense": {"scheme": SCALECOM.replace("beta=0.1,", "beta=0.1,dense=1d,")},
                "DGC as the goal has it": DGC, "DGC, the rate warmed up": {**DGC, "warmup": 1.0},
                "DGC, biases dense": {**DGC, "scheme": f"{DGC['scheme']},dense=1d"},
                "DGC, no masking": {**DGC, "scheme": f"{DGC['scheme']},masking=no"},
                "DGC, no masking, biases dense": {**DGC, "scheme": f"{DGC['scheme']},masking=no,dense=1d"},
                "DGC over all arrays, no masking": {**DGC, "scheme": f"{DGC_WHOLE['scheme']},masking=no"},
                "DGC, 5 % of the last layer": {**DGC, "densities": {"weight3": 0.05}}}  # fmt: skip
    settings = {label: ({**extra, "schedule": "cosine"}, "") for label, extra in variants.items()}
    found = trained(runs, settings, seeds, quick)
    return accuracy_rows(found, settings), found, "nearer to dense"


def dgc_longer(runs, seeds, quick):
    """Dense and DGC over three times as many epochs: what 0.1 % holds back is delivered late, and a run ends."""
    settings = {"dense": ({"scheme": "dense", "epochs": 9}, ""), "DGC 0.1 %": ({**DGC, "epochs": 9}, "")}
    found = trained(runs, settings, seeds, quick)
    return accuracy_rows(found, settings), found, "nearer to dense than after 3 epochs, if lateness is the cause"


def algorithms(runs, seeds, quick):
    """Algorithm 2 (momentum after the reduction) against Algorithm 3 (before the compression), top-k 1 %."""
    settings = {"algorithm 2: gradients compressed": (OTHERS["top-k 1 %"][0], ""),
                "algorithm 3: updates compressed": ({"scheme": "topk-global:density=0.01,memory=update"}, "")}
    found = trained(runs, settings, seeds, quick)
    return accuracy_rows(found, settings), found, "either may be ahead (Sahu et al., section C.6)"


def large_batch(runs, seeds, quick):
    """8 workers x 256 rows: the rate scaled linearly with a warm-up of half an epoch, LARS and LAMB; dense and 1 %."""
    optimizers = {"SGD": ("sgd:momentum=0.9", 0.4), "LARS": ("lars:momentum=0.9,trust_coefficient=0.02", 1.0),
                  "LAMB": ("lamb", 0.01)}  # fmt: skip
    compressed = "scalecom:selector=top-k,density=0.01,beta=0.1,warmup=9,warmup_density=1,stages=1"
    common = {"batch": 256, "warmup": 0.5}
    settings = {f"{name} {optimizer}": ({"scheme": scheme, "optimizer": text, "lr": lr, **common}, "")
                for optimizer, (text, lr) in optimizers.items()
                for name, scheme in (("dense", "dense"), ("ScaleCom 100x", compressed))}  # fmt: skip
    found = trained(runs, settings, seeds, quick)
    expected = "layer-wise rates keep the accuracy at large batches (published for larger networks and batches)"
    return accuracy_rows(found, settings), found, expected


ALL = (goals, falling_rate, block_codes, inputs, powersgd, build_up, low_pass, dgc, dgc_causes, left_out, dgc_longer,
       algorithms, accordion, large_batch, schemes)  # fmt: skip
EXPERIMENTS = {one.__name__: one for one in ALL}


def trained(runs, settings, seeds, quick):
    """Label -> (settings, expected) as label -> results."""
    less = {"epochs": 1, "batch": 32, "data": QUICK} if quick else {}
    return by_seed(runs, {label: {**BASE, **extra, **less} for label, (extra, _) in settings.items()}, seeds)


def accuracy_rows(found, settings):
    """One row per scheme: accuracy, distance to dense if a goal is set, share and bits sent, the expected accuracy."""
    rows = []
    for label, results in found.items():
        row = {"scheme": label, "accuracy": accuracy(results), "mean": points(results)}
        if "dense" in found:
            row["points below dense"] = below(found["dense"], results, WITHIN.get(label)) if label != "dense" else ""
        row["mean of the last epoch"] = each(results, lambda one: ended(one, "accuracy", 3), "{:.4f}")
        row["sent in all steps, %"] = each(results, lambda one: ended(one, "density", scale=100))
        row["MB per worker"] = each(results[:1], lambda one: ended(one, "bits", scale=1 / 8e6))
        if any(expected for _, expected in settings.values()):
            row["expected"] = settings[label][1]
        rows.append(row)
    return rows


def accuracy(results):
    """The last accuracy of each seed."""
    return each(results, lambda one: ended(one, "accuracy"), "{:.4f}")


def points(results):
    """Mean over the seeds; a run that diverged counts as none."""
    known = last(results)
    return f"{mean(known):.4f}" if known else "-"


def below(dense, results, most):
    """Points below dense in the mean over the seeds both have, and whether that is within ``most``."""
    known = {one["seed"]: ended(one, "accuracy") for one in finished(dense)}
    pairs = [(known[one["seed"]], ended(one, "accuracy")) for one in finished(results) if one["seed"] in known]
    if not pairs:
        return "-"
    value = 100 * mean(one - other for one, other in pairs)
    verdict = "" if most is None else f" (goal {most}: {'met' if value <= most else 'MISSED'})"
    return f"{round(value, 1) + 0.0:.1f}{verdict}"


def last(results):
    """The last accuracies of the runs that did not diverge."""
    return [ended(one, "accuracy") for one in finished(results)]


def finished(results):
    """Those that did not diverge."""
    return [one for one in results if one["diverged"] is None]


def ended(result, name, points=1, scale=1):
    """The mean of the last points of a curve; None where the run diverged."""
    return None if result["diverged"] is not None else scale * mean(result["curve"][name][-points:])


def late(result, name):
    """Mean of a measure over the last third of a run; None where it diverged."""
    if result["diverged"] is not None:
        return None
    values = result["measures"][name]
    return mean(values[-max(1, len(values) // 3):])
