"""Importing penstock is light."""

from __future__ import annotations

import subprocess
import sys


def test_importing_penstock_is_light():
    code = """
import sys, penstock
heavy = {"pandas", "httpx", "numpy", "cryptography", "typer"} & set(sys.modules)
assert not heavy, heavy
assert penstock.Client.__name__ == "Client"
assert "pandas" in sys.modules
assert not hasattr(penstock, "Clients")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
