"""Experiments on the apps that need PyTorch: LSTMs on text, NeuMF on ratings, ResNet-8 on images in colour.

A run takes minutes, not days, so each is much shorter than what was published: rows say how far a scheme is from dense
after the same steps, not what a network can reach. See ``convex_problems`` for what an experiment gives.
"""

from math import log
from statistics import mean

from convex_problems import by_seed, each
from networks import ended, finished

QUICK = {"language": {"data": "synthetic:tokens=3000,symbols=30,seed=1", "width": 8, "bptt": 5, "epochs": 1,
                      "tokens": None, "held_out": None},
         "recommend": {"data": "synthetic:users=40,items=150,each=12,seed=1", "batch": 16, "epochs": 1},
         "vision": {"data": "synthetic:train=96,test=20,seed=1,channels=3", "batch": 8, "epochs": 1}}  # fmt: skip
CHARACTERS = {"kind": "language", "data": "tinyshakespeare/input.txt", "workers": 4, "batch": 16, "bptt": 50,
              "epochs": 2, "lr": 1.0, "clip": 0.25}  # fmt: skip
WORDS = {"kind": "language", "data": "wikitext-2", "tokens": 250_000, "held_out": 20_000, "width": 64, "workers": 4,
         "batch": 8, "epochs": 2, "lr": 1.0, "clip": 0.25}  # fmt: skip
RATINGS = {"kind": "recommend", "data": "synthetic:users=600,items=400,each=20,seed=1", "workers": 4, "batch": 64,
           "epochs": 6, "lr": 0.005, "optimizer": "adam"}  # fmt: skip
COLOUR = {"kind": "vision", "workers": 4, "batch": 32, "epochs": 2, "lr": 0.05}


def characters(runs, seeds, quick):
    """An LSTM on Tinyshakespeare's characters (width 128), 4 workers x 16 windows of 50, 2 epochs (626 steps)."""
    settings = {"dense": {"scheme": "dense"}, "top-k 1 %": {"scheme": "topk-global:density=0.01"},
                "top-k 0.1 %": {"scheme": "topk-global:density=0.001"},
                "threshold 0.005": {"scheme": "threshold:lam=0.005"},
                "CLT-k 1 %": {"scheme": "scalecom:selector=top-k,density=0.01"},
                "PowerSGD rank 2": {"scheme": "powersgd:rank=2"},
                "ScaleCom 100x, beta 0.1, dense warm-up": {"scheme": scalecom(62)},
                "DGC 0.1 %, warm-up": {"scheme": "dgc:density=0.001", "compress_warmup": 1.0}}  # fmt: skip
    expected = ("prototypes with an embedding of 64 and another learning rate, held-out loss: dense 1.965, top-k 1 % "
                "2.011 and 0.1 % 2.157, threshold 0.005 2.004, CLT-k 2.051, PowerSGD rank 2 1.990: compare the order")
    return table(runs, {**CHARACTERS, **less(CHARACTERS, quick)}, settings, seeds, expected)


def words(runs, seeds, quick):
    """An LSTM of width 64 on the first 250 000 words of WikiText-2, 4 workers x 8 windows of 35, 2 epochs."""
    settings = {"dense": {"scheme": "dense"},
                "ScaleCom 100x, beta 0.1, dense warm-up": {"scheme": scalecom(44)},
                "DGC 0.1 %, warm-up": {"scheme": "dgc:density=0.001", "compress_warmup": 0.5},
                "PowerSGD rank 4": {"scheme": "powersgd:rank=4"}}  # fmt: skip
    expected = ("published for large networks trained to the end: WikiText-2, top-k 2 % 105.3, ACCORDION 97.1, 99 % "
                "97.6 (ACCORDION's logs); Penn Treebank, DGC at 462x 72.24 against 72.30")
    return table(runs, {**WORDS, **less(WORDS, quick)}, settings, seeds, expected)


def recommend(runs, seeds, quick):
    """NeuMF on made-up ratings: there was no copy of MovieLens. 4 workers x 64 pairs, Adam, 6 epochs."""
    settings = {"dense": {"scheme": "dense"},
                "top-k 10 % of each array (`topk`)": {"scheme": "topk:density=0.1"},
                "the same, rate x 3": {"scheme": "topk:density=0.1", "lr": 3 * RATINGS["lr"]},
                "the same, rate x 3, dense warm-up": {
                    "scheme": "topk:density=0.1,warmup=26,warmup_density=1,stages=1", "lr": 3 * RATINGS["lr"]},
                "top-k 10 % of the whole model (`topk-global`)": {"scheme": "topk-global:density=0.1"},
                "threshold 1e-3": {"scheme": "threshold:lam=1e-3"},
                "ScaleCom 10x, beta 0.1, dense warm-up": {"scheme": scalecom(26, 0.1)},
                "PowerSGD rank 4": {"scheme": "powersgd:rank=4"}}  # fmt: skip
    expected = ("published on MovieLens-20M, so not to be compared: top-k at 9.5 % against a threshold of 1.3e-6; by "
                "chance the hit rate is 0.1")
    return table(runs, {**RATINGS, **less(RATINGS, quick)}, settings, seeds, expected)


def vision(runs, seeds, quick):
    """ResNet-8 on 10 000 images of CIFAR-10 (as JPEG), 4 workers x 32, 2 epochs (156 steps)."""
    settings = {"dense": {"scheme": "dense"}, "ScaleCom 100x, beta 0.1, dense warm-up": {"scheme": scalecom(15)}}
    expected = "published for ResNet-34 on all of CIFAR-10, trained to the end: 93.98 at 92x against 93.78 (ScaleCom)"
    return table(runs, {**COLOUR, **less(COLOUR, quick)}, settings, seeds, expected)


ALL = (characters, words, recommend, vision)
EXPERIMENTS = {one.__name__: one for one in ALL}


def scalecom(warmup, density=0.01):
    """The leader's top-k with a low-pass filter, after so many steps without compression: a tenth of a run."""
    return f"scalecom:selector=top-k,density={density},beta=0.1,warmup={warmup},warmup_density=1,stages=1"


def less(base, quick):
    """Changed settings of a try-out."""
    return QUICK[base["kind"]] if quick else {}


def table(runs, base, settings, seeds, expected):
    """Run all schemes; an experiment."""
    found = by_seed(runs, {name: {**base, **extra} for name, extra in settings.items()}, seeds)
    metric = {"language": "perplexity", "recommend": "hr@10", "vision": "accuracy"}[base["kind"]]
    return [row(name, results, found["dense"], metric) for name, results in found.items()], found, expected


def row(name, results, dense, metric):
    """The last metric of each seed, how far it is from dense's, share and bits sent."""
    values = {"scheme": name, metric: each(results, lambda one: ended(one, metric), "{:.4g}"),
              "against dense": against(dense, results, metric)}  # fmt: skip
    if metric == "perplexity":
        values["loss, nats"] = each(results, lambda one: natural_log(ended(one, metric)), "{:.3f}")
    values["sent in all steps, %"] = each(results, lambda one: ended(one, "density", scale=100))
    values["MB per worker"] = each(results[:1], lambda one: ended(one, "bits", scale=1 / 8e6))
    return values


def natural_log(value):
    """The mean loss that a perplexity comes from."""
    return None if value is None else log(value)


def against(dense, results, metric):
    """The mean difference to dense, over the seeds that both have: relative for a perplexity, in points for shares."""
    known = {one["seed"]: ended(one, metric) for one in finished(dense)}
    pairs = [(known[one["seed"]], ended(one, metric)) for one in finished(results) if one["seed"] in known]
    if results is dense:
        return ""
    if not pairs:
        return "-"
    if metric == "perplexity":
        return f"{100 * mean(other / one - 1 for one, other in pairs):+.1f} %"
    return f"{100 * mean(other - one for one, other in pairs):+.1f} points"
