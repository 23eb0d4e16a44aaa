"""Uninterrupted runs, made once for all files of this folder."""

from __future__ import annotations

import pytest

from helpers.faults import Whole


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Whole:
    return Whole(tmp_path_factory.mktemp("whole"))
