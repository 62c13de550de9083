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


def test_a_longer_request_gets_a_larger_matrix():
    with Control(2) as control:
        sizes = []
        for milliseconds in (0.05, 5.0):
            assert control.fit(milliseconds) > 0
            sizes.append(control.size)
    assert SIZE_RANGE[0] <= sizes[0] < sizes[1] <= SIZE_RANGE[1]
