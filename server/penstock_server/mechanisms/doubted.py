"""What answers hang on, for those who read the files that an analyst pulls."""

from __future__ import annotations

from penstock.inference.doubts import HALF, PART
from penstock_server.mechanisms.protocol import Json

_DOUBTS = (
    "What an answer hangs on. doubt: what share of all that a site's rows tell of a coefficient is "
    "of a few persons who lie far out, whom the mechanism cuts to a bound. attenuated: {part:g} or "
    "more, and the answer may be off by more than its interval says, to either side. unsupported: "
    "{half:g} or more, and hardly more than half of such intervals hold the truth: the number is "
    "no answer."
)


def describe_doubts(report: Json) -> Json:
    """What the answers hang on, as the report marks them; for those who read the files."""
    found = [{"estimand": e["name"], **e["held"]} for e in report["estimands"] if e["held"]]
    about = _DOUBTS.format(part=PART, half=HALF)
    return {"held": {"about": about, "estimands": found}} if found else {}
