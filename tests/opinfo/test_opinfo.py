"""Every operation of torch as a test: ``make zoo``, or ``pytest -m zoo``."""

from __future__ import annotations

import pytest

from tests.opinfo.forms import operations
from tests.opinfo.judge import BAD
from tests.opinfo.run import run


@pytest.mark.zoo
@pytest.mark.timeout(3600)
def test_no_operation_is_wrong() -> None:
    found = run(range(len(operations())))
    assert len({f.name for f in found}) >= 346
    assert [f for f in found if f.outcome in BAD] == []
