"""Amounts as a person reads them."""

from __future__ import annotations

_MOST = 1e12


def dollars(usd: float) -> str:
    """US dollars, 0 or more, in at most 23 characters: to a tenth of a cent below one, to the cent below 10,000."""
    if usd > _MOST:
        return f"over ${_MOST:,.0f}"
    if 0 < usd < 0.0005:
        return "under $0.001"
    if 0 < usd < 0.9995:
        return f"${usd:.3f}".removesuffix("0")
    return f"${usd:,.2f}" if usd < 10_000 else f"${usd:,.0f}"


def flops(rate: float | None) -> str:
    """Floating-point operations a second, in the unit that fits; "unknown" where there is none."""
    if not rate:
        return "unknown"
    unit, size = next(((u, s) for u, s in (("PFLOP/s", 1e15), ("TFLOP/s", 1e12)) if rate >= s), ("GFLOP/s", 1e9))
    return f"{rate / size:.3g} {unit}"
