"""`python -m tests.benchmarks NAME`: one benchmark, as `make bench` runs it."""

import sys

from tests.support.results import run_named

BENCHMARKS = {
    "maf": "tests.benchmarks.maf",
    "memory": "tests.benchmarks.memory",
    "network": "tests.benchmarks.network",
    "particles": "tests.benchmarks.particles",
    "pooling": "tests.benchmarks.pooling",
    "privacy": "tests.benchmarks.privacy",
    "rounds": "tests.benchmarks.rounds",
    "tables": "tests.benchmarks.tables",
    "twelve": "tests.benchmarks.twelve",
    "wide": "tests.benchmarks.wide",
}

if __name__ == "__main__":
    sys.exit(run_named(BENCHMARKS, sys.argv[1:]))
