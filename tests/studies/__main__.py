"""`python -m tests.studies NAME`: one study of the methods, as `make reproduce` runs it."""

import sys

from tests.support.results import run_named

STUDIES = {
    "adult": "tests.studies.adult",
    "answers": "tests.studies.answers",
    "audits": "tests.studies.audits",
    "break-even": "tests.studies.break_even",
    "combining": "tests.studies.combining",
    "counts": "tests.studies.tallied",
    "coverage": "tests.studies.coverage",
    "demos": "tests.studies.demos",
    "ended": "tests.studies.ended",
    "fewer-rows": "tests.studies.fewer_rows",
    "forecast": "tests.studies.forecasts",
    "foreign": "tests.studies.foreign",
    "frame": "tests.studies.frame",
    "global": "tests.studies.joint_sites",
    "heterogeneity": "tests.studies.joint_heterogeneity",
    "half-circles": "tests.studies.half_circles",
    "hazard-ratio": "tests.studies.hazard_ratio",
    "joint-flows": "tests.studies.joint_flows",
    "joint-trajectories": "tests.studies.joint_trajectories",
    "landmarks": "tests.studies.landmarks",
    "langevin": "tests.studies.langevin",
    "lni-cohorts": "tests.studies.lni_cohorts",
    "lni-correlation": "tests.studies.lni_correlation",
    "lni-meta": "tests.studies.lni_meta",
    "lni-mia": "tests.studies.lni_mia",
    "marks": "tests.studies.marks",
    "panels": "tests.studies.panels",
    "private-utility": "tests.studies.private_utility",
    "stall": "tests.studies.stall",
    "sum-audits": "tests.studies.sum_audits",
    "swf-digits": "tests.studies.swf_digits",
    "swf-mixture": "tests.studies.swf_mixture",
    "swf-toy": "tests.studies.swf_toy",
    "trajectories": "tests.studies.trajectories",
    "unseen": "tests.studies.unseen",
    "wide-tables": "tests.studies.wide_tables",
}

if __name__ == "__main__":
    sys.exit(run_named(STUDIES, sys.argv[1:]))
