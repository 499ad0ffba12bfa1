"""What the commands' exit codes mean: for people, for `--help`, and for scripts to rely on."""

from __future__ import annotations

EXITS: dict[int, str] = {
    0: "it worked",
    1: "a file, the disk, or an error of Penstock's own",
    2: "a file, an option or a command is wrong; every problem is listed",
    3: "privacy: more ε than is left, or a claim that does not hold",
    4: "a site refuses, for a public reason",
    5: "a signature is missing, wrong, or by an unknown key",
    6: "what a site sent is not what was asked for",
    7: "the ledger cannot be used, or does not add up",
    8: "the site's gate does not answer",
    9: "the coordinator refuses",
    10: "a study or a run ended without results; or a doctor found a fault",
    11: "no coordinator answers at that address",
    12: "not logged in, or not allowed",
    130: "interrupted (Ctrl-C)",
}
"""Every code, in the order of the list. One that is given out never changes its meaning."""

EPILOG = "\n\n".join(
    [
        "Exit codes, with which scripts can tell what happened:",
        *(f"{code}  {meaning}" for code, meaning in EXITS.items()),
    ]
)
