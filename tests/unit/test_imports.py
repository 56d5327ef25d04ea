"""The product's modules run in tests as they run for users."""

from importlib import import_module
from importlib.machinery import SourceFileLoader

import pytest


@pytest.mark.parametrize("name", ["ottla.broker.apis", "ottla.broker.handlers.transactions"])
def test_pytest_does_not_rewrite_the_asserts_of_the_product(name: str) -> None:
    assert type(import_module(name).__loader__) is SourceFileLoader
