"""What lies between two workers, by their labels, and how long a KV cache takes over it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import LinkClass
from gateway.handoff.links import ORDER, PRIORS, KvSize, Link, LinkCost, at_least, is_slow, link_class
from parsers.registry import get_format

GB200_PREFILL = {"nvlink_clique": "c1.0", "compute_domain": "prefill", "rdma": "true"}
GB200_DECODE = {"nvlink_clique": "c1.0", "compute_domain": "decode", "rdma": "true"}
GB300 = {"nvlink_clique": "c1.0", "compute_domain": "disagg", "cumem": "true"}
K3 = get_format("kimi_k3").kv_shape


def without(labels: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in labels.items() if name not in names}


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        (GB200_PREFILL, GB200_DECODE, "rdma"),
        (without(GB200_PREFILL, "rdma"), without(GB200_DECODE, "rdma"), "rdma"),
        ({**GB200_PREFILL, "cumem": "true"}, {**GB200_DECODE, "cumem": "true"}, "rdma"),
        (GB300, GB300, "mnnvl"),
        (GB300, without(GB300, "cumem"), "rdma"),
        (GB300, {**GB300, "cumem": "false"}, "rdma"),
        (GB300, {**GB300, "nvlink_clique": "c2.0"}, "rdma"),
        (GB300, without(GB300, "compute_domain"), "rdma"),
        ({"host": "a", "nvlink": "true"}, {"host": "a", "nvlink": "true"}, "nvlink"),
        ({"host": "a", "nvlink": "true"}, {"host": "a"}, "shm"),
        ({"host": "a"}, {"host": "a"}, "shm"),
        ({"host": "a", "rdma": "true"}, {"host": "b", "rdma": "true"}, "rdma"),
        ({"host": "a", "rdma": "true"}, {"host": "b"}, "tcp"),
        ({}, {}, "tcp"),
        (GB300, {}, "tcp"),
    ],
)
def test_the_class_of_a_link_follows_from_the_labels_of_its_ends(
    prefill: dict[str, str], decode: dict[str, str], expected: LinkClass
) -> None:
    assert link_class(prefill, decode) == expected
    assert link_class(decode, prefill) == expected


def test_a_better_link_than_wanted_is_good_enough() -> None:
    for place, link in enumerate(ORDER):
        assert [at_least(link, wanted) for wanted in ORDER] == [other >= place for other in range(len(ORDER))]


def seconds(tokens: int, block: int, link: LinkClass) -> float:
    assert K3 is not None
    return PRIORS[link].seconds(K3.bytes_of(tokens) - K3.state_bytes, K3.pieces_of(tokens, block))


def test_a_64k_prompt_costs_what_was_computed_from_measurements() -> None:
    assert K3 is not None
    assert K3.pieces_of(65_536, 1_536) - K3.state_layers == 43 * 24
    assert K3.bytes_of(65_536) - K3.state_bytes == pytest.approx(0.9e9, rel=0.01)
    assert seconds(65_536, 1_536, "nvlink") == pytest.approx(0.012, rel=0.2)
    assert seconds(65_536, 64, "nvlink") == pytest.approx(0.185, rel=0.1)


def test_small_blocks_make_a_network_card_faster_than_nvlink_across_nodes() -> None:
    assert seconds(65_536, 64, "rdma") < seconds(65_536, 64, "mnnvl")
    assert seconds(65_536, 1_536, "rdma") > seconds(65_536, 1_536, "mnnvl")


def test_the_state_is_moved_whatever_the_length() -> None:
    assert K3 is not None
    assert K3.bytes_of(1) > 69 * 1024 * 1024
    assert K3.bytes_of(1001) - K3.bytes_of(1) == 1000 * 24 * 576


SIZE = KvSize(1e9, 1000)


def test_a_probes_measurement_is_believed_before_the_prior() -> None:
    measured = LinkCost(1.0, 0.0, 1e9)
    assert Link("rdma", measured).seconds(SIZE) == 2.0


@given(st.floats(0.2, 500), st.integers(1, 50))
def test_reported_times_move_a_link_from_its_prior_to_what_happens(truth: float, batch: int) -> None:
    link = Link("nvlink")
    predicted = link.seconds(SIZE)
    total = KvSize(SIZE.bytes * batch, SIZE.descriptors * batch)
    for _ in range(40):
        link.reported(total, batch, predicted * truth * batch)
    assert link.seconds(SIZE) == pytest.approx(predicted * truth, rel=0.01)


def test_a_lost_path_is_known_from_the_first_report() -> None:
    link = Link("nvlink")
    predicted = link.seconds(SIZE)
    link.reported(SIZE, 1, 600 * predicted)
    assert link.seconds(SIZE) == pytest.approx(600 * predicted)


def test_what_the_transfer_does_not_explain_is_added_for_the_pair() -> None:
    link, other = Link("nvlink"), Link("nvlink")
    for _ in range(40):
        link.handed_over(SIZE, link.cost.seconds(SIZE.bytes, SIZE.descriptors) + 0.5)
    assert link.seconds(SIZE) == pytest.approx(other.seconds(SIZE) + 0.5, rel=0.01)


def test_a_handover_that_was_faster_than_predicted_is_no_debt() -> None:
    link = Link("tcp")
    link.handed_over(SIZE, 0.001)
    assert link.rest == 0


@pytest.mark.parametrize(
    ("kind", "gigabytes_a_second", "slow"),
    [
        ("nvlink", 180, False),
        ("nvlink", 0.38, True),
        ("rdma", 0.4, True),
        ("rdma", 30, False),
        ("tcp", 0.38, False),
        ("shm", 4.1, False),
        ("shm", 0.1, True),
    ],
)
def test_a_link_far_under_its_class_is_slow(kind: LinkClass, gigabytes_a_second: float, slow: bool) -> None:
    assert is_slow(kind, 1e9, 10, 1 / gigabytes_a_second) is slow


def test_small_transfers_and_none_tell_nothing() -> None:
    assert not is_slow("nvlink", 1e6, 10, 1.0)
    assert not is_slow("nvlink", 0, 0, 0.0)
