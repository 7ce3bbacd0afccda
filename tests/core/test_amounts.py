"""Amounts in every place where a person reads them."""

import pytest

from autoresearch.core.amounts import dollars, flops


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0.0, "$0.00"),
        (1e-9, "under $0.001"),
        (0.0005, "$0.001"),
        (0.0123, "$0.012"),
        (0.5, "$0.50"),
        (0.9994, "$0.999"),
        (0.9996, "$1.00"),
        (12.345, "$12.35"),
        (9999.99, "$9,999.99"),
        (123_456.7, "$123,457"),
        (1e12, "$1,000,000,000,000"),
        (1e16, "over $1,000,000,000,000"),
        (1e300, "over $1,000,000,000,000"),
    ],
)
def test_dollars(usd, text):
    assert dollars(usd) == text
    assert len(text) <= 23


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (None, "unknown"),
        (0.0, "unknown"),
        (9.895e14, "990 TFLOP/s"),
        (1.979e15, "1.98 PFLOP/s"),
        (2.11e11, "211 GFLOP/s"),
    ],
)
def test_flops(rate, text):
    assert flops(rate) == text
