from __future__ import annotations

import pytest
from secagg_harness import Federation


@pytest.fixture
def federation() -> Federation:
    return Federation()
