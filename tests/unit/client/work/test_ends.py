"""How a worker ended, as its gate may tell it: never in the words of an error."""

from __future__ import annotations

import pytest

from penstock_client.work.ends import describe_failure, explain_end


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


class _ArrayMemoryError(MemoryError):
    """As numpy's own."""


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (MemoryError(), True),
        (_ArrayMemoryError("Unable to allocate 8. GiB"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate"), True),
        (OSError(12, "Cannot allocate memory"), True),
        (ValueError("can't allocate memory is what a row said"), False),
        (RuntimeError("the flow kernel failed"), False),
    ],
)
def test_a_worker_confesses_whether_memory_ran_out_and_never_a_text(
    error: Exception, short: bool
) -> None:
    outcome = describe_failure(raised(error))
    assert outcome["memory"] is short
    text = explain_end(outcome, 1, 4.0, False)
    assert ("ran out of memory (limit 4 GB)" in text) is short
    assert type(error).__name__ in text
    assert str(error) == "" or str(error) not in text


@pytest.mark.parametrize(
    ("status", "killed", "said"),
    [
        (-9, False, "memory is full (limit 4 GB)"),
        (-9, True, "ended by the gate"),
        (-6, False, "memory runs out (limit 4 GB)"),
        (3, False, "exit status 3"),
        (None, False, "exit status None"),
    ],
)
def test_a_worker_that_confesses_nothing_is_told_by_its_status(status, killed, said) -> None:
    assert said in explain_end(None, status, 4.0, killed)
