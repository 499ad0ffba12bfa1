"""One way to make every kind of event, for the tests that hold for all of them."""

from penstock.privacy import events

LESS_NOISE, MORE_NOISE = 0.8, 1.3

FIELDS = {
    "gaussian": {"noise_multiplier": 4.0},
    "discrete-gaussian": {"noise_multiplier": 4.0, "grid_sd": 2.0**20, "size": 20},
    "poisson-gaussian": {"rate": 0.07, "noise_multiplier": 1.5},
    "fixed-size-gaussian": {"batch": 20, "population": 500, "noise_multiplier": 1.5},
    "laplace": {"scale": 5.0},
    "noisy-descent": {"noise_multiplier": 6.0, "contraction": 0.9, "steps": 50},
    "shuffled-gaussian": {
        "persons": 20_000,
        "noise_multiplier": 3.0,
        "local_delta": 1e-13,
        "delta": 2e-8,
    },
    "distributed-gaussian": {
        "noise_multiplier": 4.0,
        "sites": 5,
        "dropouts": 1,
        "colluders": 1,
        "grid_sd": 2.0**30,
        "size": 20,
    },
    "pure": {"epsilon": 0.2},
    "approximate": {"epsilon": 0.2, "delta": 1e-9},
    "unbounded": {},
    "on-stratum": {"stratum": "north", "event": events.Gaussian(4.0)},
}
"""Constructor arguments, for a count of 1 and moderate noise."""

BOUNDED = sorted(set(FIELDS) - {"unbounded"})


def make(kind, *, count=1, noise=1.0, label=""):
    """One event of a kind; ``noise`` multiplies what it is protected by."""
    if kind == "unbounded":
        return events.Unbounded(label)
    if kind == "on-stratum":
        return events.OnStratum("north", make("gaussian", count=count, noise=noise, label=label))
    fields = dict(FIELDS[kind])
    for name in ("noise_multiplier", "scale"):
        if name in fields:
            fields[name] *= noise
    if "epsilon" in fields:
        fields["epsilon"] /= noise
    return events._KINDS[kind](**fields, count=count, label=label)
