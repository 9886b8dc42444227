"""What is read from a worker's metrics page."""

from __future__ import annotations

from gateway.fleet.vitals import Transfers, Vitals, read_vitals

PAGE = """
# HELP vllm:nixl_xfer_time_seconds Time.
# TYPE vllm:nixl_xfer_time_seconds histogram
vllm:nixl_xfer_time_seconds_bucket{engine="0",le="+Inf"} 4.0
vllm:nixl_xfer_time_seconds_sum{engine="0",model_name="a \\"b\\" {c}"} 0.5
vllm:nixl_xfer_time_seconds_sum{engine="1",model_name="m"} 1.5
vllm:nixl_xfer_time_seconds_count{engine="0",model_name="m"} 4.0
vllm:nixl_bytes_transferred_sum{engine="0",model_name="m"} 1e9
vllm:nixl_num_descriptors_sum{engine="0",model_name="m"} 320.0
vllm:nixl_num_kv_expired_reqs_total{engine="0",model_name="m"} 2.0
vllm:nixl_num_kv_expired_reqs_created{engine="0",model_name="m"} 1.7e9
"""


def test_transfers_are_summed_over_the_ranks() -> None:
    read = read_vitals(PAGE)
    assert read.transfers == Transfers(count=4, seconds=2, bytes=1e9, descriptors=320, expired=2)


def test_a_page_without_any_of_it_says_so() -> None:
    assert read_vitals("# nothing\nother 1\n") == Vitals(None, None, 1, None)


def test_the_difference_of_two_readings_is_what_came_between() -> None:
    before = Transfers(count=1, seconds=1, bytes=10)
    assert Transfers(count=3, seconds=4, bytes=30).since(before) == Transfers(count=2, seconds=3, bytes=20)


def test_counters_that_began_anew_count_from_nothing() -> None:
    assert Transfers(count=1, bytes=5).since(Transfers(count=9, bytes=90)) == Transfers(count=1, bytes=5)
