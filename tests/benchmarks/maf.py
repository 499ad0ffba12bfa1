"""The flow engine beside zuko, nflows and Opacus, in one run on one thread.

A masked autoregressive flow of 4 blocks with one hidden layer of 64, on n = 2000 rows of d = 7
columns. All contenders run in turn, round after round, in one process; medians and quartiles over
the rounds, and of the rounds' own ratios, where above 1 means that ours is faster. A target holds
where the median reaches it. A row begins with the peer that it is about.

- **Fit**: 100 passes in shuffled minibatches of 256 (800 steps), Adam, cosine schedule, the same
  for all, each at the learning rate that suits it best, with tanh (our default) and with ReLU
  (theirs). The mean log-likelihood that each reaches on 20,000 fresh rows stands below, so that
  like is compared with like.
- **DP-SGD**: the same flow, number for number. Opacus in three of its modes, with our secure noise
  and our Poisson samples: its own need a package that follows no current torch, and so both sides
  pay the same for them. Its data loader, which would cost it more, is left out.
- **Sampling**: the inverse of 100,000 given latents.
- **Memory**: each contender in a process of its own, MiB: the peak of the whole process (ours needs
  no torch, theirs do), and the rise above what stood there before the work began. No more than
  theirs is the target, for rises to within 1 MiB.
- **Many fits**: bootstrap replicates side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from tests.benchmarks import contender_memory as memory
from tests.benchmarks import flow, peers
from tests.benchmarks.scaling import picture
from tests.support.results import RESULTS, Row, write

REPEATS = 7
STEPS = flow.EPOCHS * -(-flow.N // flow.BATCH)
MODES = ("ghost", "hooks", "functorch")
CPU_FITS, GPU_FITS = 8, 256
OURS = {"ours": "kernel", "our torch backend": "torch"}


def run() -> Path:
    """Measure; medians over REPEATS."""
    flow.threads(1)
    rows: list[Row] = []
    for activation in ("tanh", "relu"):
        rows += fits(activation)
    rows += private("full batch", flow.N, 50, 4, target=15.0)
    rows += private("Poisson batches", flow.BATCH, 200, 16, target=5.0)
    for activation in ("tanh", "relu"):
        rows += samples(activation)
    rows += [*memories(), *many()]
    picture(RESULTS / "maf.png")
    versions = ", ".join(f"{name} {version(name)}" for name in (*peers.PEERS, "opacus", "torch"))
    note = f"{(__doc__ or '').strip()}\n\n{versions}.\n\n![Milliseconds per step](maf.png)"
    return write("maf", rows, note)


def fits(activation: str) -> Iterator[Row]:
    x, fresh = flow.data(), flow.data(20_000, seed=1)
    training = flow.public(STEPS, flow.BATCH)
    reached: dict[str, Callable[[], float]] = {}

    def ours(who: str) -> None:
        made = flow.ours(x, training, OURS[who], activation=activation)
        reached[who] = lambda: float(made.log_prob(fresh).mean())

    def theirs(who: str) -> None:
        peer = peers.PEERS[who]
        made = peers.fit(peer, x, flow.BATCH, flow.EPOCHS, activation=activation)
        reached[who] = lambda: peers.mean_log_prob(peer, made, fresh)

    times = flow.interleaved(_works(ours, theirs, peers.PEERS), REPEATS)
    what = f"fit, {activation}"
    yield from _compared(what, times, {"zuko": 15.0})
    own = reached["ours"]()
    for who in _others(times):
        told = f"{who}: {what}, log-likelihood of a fresh row"
        yield Row(told, own, None, 1, peer=reached[who]())


def private(what: str, size: int, our_steps: int, their_steps: int, target: float) -> Iterator[Row]:
    """Milliseconds per step of about ``size`` rows; the target is for each of Opacus's modes."""
    x = flow.data()
    rate = None if size == flow.N else size / flow.N
    made = {f"Opacus, {mode}": peers.OpacusFit(x, mode, rate) for mode in MODES}

    def ours(who: str) -> None:
        flow.ours(x, flow.private(our_steps, rate), OURS[who])

    def theirs(who: str) -> None:
        made[who].steps(their_steps)

    taken = flow.interleaved(_works(ours, theirs, made), REPEATS)
    steps = {**dict.fromkeys(OURS, our_steps), **dict.fromkeys(made, their_steps)}
    times = {who: 1e3 * seconds / steps[who] for who, seconds in taken.items()}
    targets = dict.fromkeys(made, target)
    yield from _compared(f"DP-SGD, {what} of {size}, a step", times, targets, "ms")
    best = min(made, key=lambda who: flow.median(times[who]))
    told = f"{best}: DP-SGD, {what} of {size}, rows per second"
    peer = 1e3 * size / flow.median(times[best])
    yield flow.summary(told, 1e3 * size / times["ours"], peer=peer)


def samples(activation: str) -> Iterator[Row]:
    x = flow.data()
    z = np.random.default_rng(0).standard_normal((flow.SAMPLES, flow.D))
    z32 = torch.as_tensor(z, dtype=torch.float32)
    few = flow.public(100, flow.BATCH)
    mine = {who: flow.ours(x, few, name, activation=activation) for who, name in OURS.items()}
    made = {
        who: peers.fit(peer, x, flow.BATCH, 10, activation=activation)
        for who, peer in peers.PEERS.items()
    }

    def ours(who: str) -> None:
        mine[who].from_latent(z)

    def theirs(who: str) -> None:
        peers.samples(peers.PEERS[who], made[who], z32)

    taken = flow.interleaved(_works(ours, theirs, made), REPEATS)
    times = {who: 1e3 * seconds for who, seconds in taken.items()}
    yield from _compared(f"{flow.SAMPLES:,} samples, {activation}", times, {"zuko": 50.0}, "ms")


def memories() -> Iterator[Row]:
    """The peer's is the target; a rise is compared to a MiB, which one allocation may move."""
    found = {name: memory.measure(name) for name in memory.NAMES}
    for name, theirs in found.items():
        who, what = name.rsplit(" ", 1)
        if who == "ours":
            continue
        pairs = zip(found[f"ours {what}"], theirs, strict=True)
        for kind, slack, (own, peer) in zip(("rise", "peak"), (1, 0), pairs, strict=True):
            told = f"{who}: memory, {what}, {kind} (MiB)"
            yield Row(told, own, None, 1, target=peer, peer=peer, holds=own <= peer + slack)


def many() -> Iterator[Row]:
    """Bootstrap fits at once: on two threads beside one after the other, and on a GPU."""
    x = flow.data()
    training = flow.public(200, flow.BATCH)
    cores = min(2, flow.cores())

    works = {
        "at once": lambda: flow.bootstrap(x, training, CPU_FITS, at_once=cores),
        "in turn": lambda: flow.bootstrap(x, training, CPU_FITS),
    }
    times = flow.interleaved(works, REPEATS)
    what = f"{CPU_FITS} fits of {training.steps} steps at once, {cores} threads"
    beside = flow.median(times["in turn"])
    yield flow.summary(f"in turn, 1 thread: {what} (s)", times["at once"], peer=beside)
    yield flow.faster(
        f"in turn, 1 thread: {what}, times faster", times["at once"], times["in turn"]
    )
    if not torch.cuda.is_available():
        yield Row(f"{GPU_FITS} fits at once on a GPU: no GPU at hand", None, None, 0)
        return
    training = flow.public(STEPS, flow.BATCH)
    taken = [
        flow.seconds(lambda: flow.bootstrap(x, training, GPU_FITS, "cuda", flow.cores()))
        for _ in range(4)
    ]
    what = f"{GPU_FITS} fits of {STEPS} steps at once on a GPU: seconds per fit"
    yield flow.summary(what, np.array(taken[1:]) / GPU_FITS)


def _works(
    ours: Callable[[str], None], theirs: Callable[[str], None], others: Mapping[str, object]
) -> dict[str, Callable[[], object]]:
    return {who: partial(ours, who) for who in OURS} | {who: partial(theirs, who) for who in others}


def _compared(
    what: str, times: flow.Times, targets: Mapping[str, float], unit: str = "s"
) -> Iterator[Row]:
    """Our kernel's time beside each other's, and by how many times it is faster."""
    own = times["ours"]
    for who in _others(times):
        yield flow.summary(f"{who}: {what} ({unit})", own, peer=flow.median(times[who]))
        yield flow.faster(f"{who}: {what}, times faster", own, times[who], targets.get(who))


def _others(times: flow.Times) -> list[str]:
    return [who for who in times if who != "ours"]
