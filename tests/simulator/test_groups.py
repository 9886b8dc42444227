"""KV groups: how they are written, what each needs, how much fits in a pool."""

from __future__ import annotations

import pytest

from simulator.groups import Group, parse_groups
from simulator.settings import SimulatorSettings

FULL, STATE = Group("full_attention"), Group("mamba")


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("attention", [FULL]),
        ("mla", [Group("mla_attention")]),
        ("attention+mamba", [STATE, FULL]),
        ("mla+mamba*3", [STATE, STATE, STATE, Group("mla_attention")]),
        ("attention+sliding_window:64*2", [Group("sliding_window", 64)] * 2 + [FULL]),
        ("attention+mamba+sliding_window:8", [STATE, Group("sliding_window", 8), FULL]),
    ],
)
def test_the_full_group_is_written_first_and_numbered_last(text: str, groups: list[Group]) -> None:
    assert list(parse_groups(text)) == groups


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mamba",
        "attention+",
        "attention+sliding_window",
        "attention+mamba*0",
        "attention+sliding_window:0",
    ],
)
def test_texts_that_are_no_groups(text: str) -> None:
    with pytest.raises(ValueError, match="KV group"):
        parse_groups(text)


@pytest.mark.parametrize(
    ("window", "blocks"), [(1, 0), (2, 1), (4, 1), (5, 1), (6, 2), (9, 2), (10, 3), (None, 1)]
)
def test_blocks_that_the_next_token_looks_at(window: int | None, blocks: int) -> None:
    """The window counts the token itself; blocks are of 4 tokens."""
    group = STATE if window is None else Group("sliding_window", window)
    assert group.tail(4) == blocks


def test_sparse_groups_leave_room_for_the_full_one() -> None:
    def capacity(groups: str) -> int:
        return SimulatorSettings(
            kv_groups=groups, num_blocks=101, block_size=4, max_num_batched_tokens=8
        ).capacity

    assert capacity("attention") == 400
    assert capacity("attention+mamba*3") == (100 - 3 * 2) * 4
    assert capacity("attention+sliding_window:9") == (100 - 5) * 4


def test_in_a_small_pool_no_group_needs_more_than_the_full_one() -> None:
    settings = SimulatorSettings(kv_groups="attention+sliding_window:1000*3", num_blocks=41, block_size=4)
    assert settings.capacity == 10 * 4
