"""Tests of integrations are skipped where the other project is not installed."""

from __future__ import annotations

import importlib.util

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("transformers") is not None:
        return
    for item in items:
        if item.path.name.startswith("test_transformers"):
            item.add_marker(pytest.mark.skip(reason="transformers is not installed"))
