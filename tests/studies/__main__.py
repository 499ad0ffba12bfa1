"""`python -m tests.studies bench NAME` or `reproduce NAME`: see the Makefile."""

from __future__ import annotations

import sys
from importlib import import_module

STUDIES = {
    "bench": {
        "maf": "tests.studies.bench_maf",
        "memory": "tests.studies.bench_workers",
        "network": "tests.studies.bench_network",
        "particles": "tests.studies.bench_particles",
        "privacy": "tests.studies.bench_privacy",
        "twelve": "tests.studies.bench_twelve",
    },
    "reproduce": {
        "audits": "tests.studies.audits",
        "combining": "tests.studies.combining",
        "coverage": "tests.studies.coverage",
        "foreign": "tests.studies.foreign",
        "frame": "tests.studies.frame",
        "half-circles": "tests.studies.half_circles",
        "hazard-ratio": "tests.studies.hazard_ratio",
        "langevin": "tests.studies.langevin",
        "lni-cohorts": "tests.studies.lni_cohorts",
        "lni-correlation": "tests.studies.lni_correlation",
        "lni-meta": "tests.studies.lni_meta",
        "lni-mia": "tests.studies.lni_mia",
        "stall": "tests.studies.stall",
        "swf-digits": "tests.studies.swf_digits",
        "swf-mixture": "tests.studies.swf_mixture",
        "swf-toy": "tests.studies.swf_toy",
        "trajectories": "tests.studies.trajectories",
    },
}


def main(arguments: list[str]) -> int:
    kind = arguments[0] if arguments else ""
    name = arguments[1] if len(arguments) > 1 else ""
    known = STUDIES.get(kind, {})
    if name not in known:
        names = ", ".join(known) or ", ".join(STUDIES)
        sys.stderr.write(f"error: NAME={name or '(none)'} is not known; use one of: {names}\n")
        return 2
    path = import_module(known[name]).run()
    sys.stdout.write(path.read_text())
    return 0


sys.exit(main(sys.argv[1:]))
