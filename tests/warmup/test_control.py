from __future__ import annotations

import threading

import pytest

from warmup.control import SIZE_RANGE, Control


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_thread_multiplies_and_close_ends_them(threads):
    before = threading.active_count()
    with Control(threads) as control:
        assert threading.active_count() == before + threads - 1
        for product in control._products:
            product.fill(0)
        control.call()
        assert all(product.any() for product in control._products)
    assert threading.active_count() == before


def test_a_longer_request_gets_a_larger_matrix(monkeypatch):
    """The time is a function of the size here: on a busy machine a real one may be anything."""
    monkeypatch.setattr(Control, "_fastest", lambda control: control.size**3 * 1e-6)
    with Control(2) as control:
        for milliseconds in (0.05, 5.0, 0.05):
            assert control.fit(milliseconds) == pytest.approx(milliseconds, rel=0.15)
            assert control.size == pytest.approx((milliseconds * 1e6) ** (1 / 3), rel=0.05)
        control.fit(1e9)
        assert control.size == SIZE_RANGE[1]


def test_fitting_by_the_clock_gives_what_a_call_takes():
    with Control(2) as control:
        assert control.fit(1.0) > 0
        assert SIZE_RANGE[0] <= control.size <= SIZE_RANGE[1]
