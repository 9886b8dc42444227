"""A line through measured transfers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabric.agent import MIB, SIZES, shapes
from fabric.results import Timing, fit


def timings(t0: float, descriptor: float, bandwidth: float) -> list[Timing]:
    return [
        Timing(
            pieces=shape.pieces,
            piece_bytes=shape.piece_bytes,
            seconds=t0
            + (shape.pieces if shape.pieces > 1 else 0) * descriptor
            + shape.pieces * shape.piece_bytes / bandwidth,
        )
        for shape in shapes(256 * MIB)
    ]


@given(st.floats(1e-6, 1e-2), st.floats(1e-7, 1e-3), st.floats(1e8, 3e11))
def test_a_straight_line_is_found_again(t0: float, descriptor: float, bandwidth: float) -> None:
    found = fit(timings(t0, descriptor, bandwidth))
    assert found == pytest.approx((t0, descriptor, bandwidth), rel=1e-2, abs=1e-9)


def test_noise_gives_no_negative_costs() -> None:
    flat = [Timing(pieces=n, piece_bytes=1000, seconds=1.0 / n) for n in (1, 1, 10)]
    t0, descriptor, bandwidth = fit(flat)
    assert min(t0, descriptor) >= 0
    assert bandwidth >= 0


@pytest.mark.parametrize("kept", [slice(0, 1), slice(0, len(SIZES)), slice(len(SIZES), None)])
def test_too_few_shapes_are_no_measurement(kept: slice) -> None:
    with pytest.raises(ValueError, match="contiguous"):
        fit(timings(1e-3, 1e-6, 1e9)[kept])


def test_shapes_fit_in_the_buffer_and_pieces_do_not_touch() -> None:
    for nbytes in (1 * MIB, 64 * MIB, 256 * MIB):
        assert all(shape.span <= nbytes for shape in shapes(nbytes))
    assert max(shape.pieces * shape.piece_bytes for shape in shapes(256 * MIB)) == 256 * MIB
    assert all(shape.stride == 2 * shape.piece_bytes for shape in shapes(256 * MIB) if shape.pieces > 1)
