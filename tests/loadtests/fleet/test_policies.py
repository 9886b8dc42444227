"""The formulas of other routers, on cases that can be worked out by hand."""

from __future__ import annotations

import pytest

from loadtests.fleet.cache import Removed, Stored
from loadtests.fleet.request import Request
from loadtests.fleet.rivals import CacheAware, Dynamo, Multiplicative, Weighted
from loadtests.fleet.view import Formula, Prompt, ViewChooser, WorkerView

SIZE = 100


def prompt(*blocks: int, tokens: int | None = None) -> Request:
    length = len(blocks) * SIZE + 1 if tokens is None else tokens
    return Request(arrival=0.0, prompt_tokens=length, output_tokens=1, blocks=blocks)


def chooser(formula: Formula, *caches: tuple[int, ...]) -> ViewChooser:
    """Workers w0, w1... that have announced these blocks."""
    made = ViewChooser(formula, SIZE)
    for number, blocks in enumerate(caches):
        made.add_worker(f"w{number}")
        if blocks:
            made.apply(f"w{number}", [Stored(blocks, None)], 0.0)
    return made


def load(made: ViewChooser, worker: str, *requests: Request) -> list[int]:
    """Place requests on one worker, whatever the formula says; their tickets."""
    others = {name: view for name, view in made._workers.items() if name != worker}
    for name in others:
        made.remove_worker(name)
    tickets = [made.choose(request, 0.0).ticket for request in requests]
    mine = made._workers.pop(worker)
    made._workers = dict(sorted({**others, worker: mine}.items()))
    return tickets


def test_overlap_is_contiguous_and_never_the_whole_prompt() -> None:
    view = WorkerView("w0")
    view.apply([Stored((1, 2, 3), None)])
    assert Prompt(prompt(1, 2, 3), SIZE).cached_tokens(view) == 300
    assert Prompt(prompt(1, 2, 3, tokens=300), SIZE).cached_tokens(view) == 200
    view.apply([Removed((2,))])
    assert Prompt(prompt(1, 2, 3), SIZE).cached_tokens(view) == 100


def test_overlap_of_a_hybrid_worker_ends_at_a_state() -> None:
    view = WorkerView("w0")
    view.apply([Stored((1, 2, 3), None), Stored((2,), None, state=True)])
    assert Prompt(prompt(1, 2, 3), SIZE).cached_tokens(view) == 200


def test_accounting_follows_a_request() -> None:
    made = chooser(Dynamo(0), (1,))
    view = made._workers["w0"]
    choice = made.choose(prompt(1, 2), 0.0)
    assert choice.overlap_tokens == 100
    assert (view.queued_tokens, view.waiting, view.sequences, view.active_blocks) == (101, 1, 1, 2)
    made.first_token(choice.ticket, 100, 1.0)
    assert (view.queued_tokens, view.waiting, view.sequences, view.active_blocks) == (0, 0, 1, 2)
    made.release(choice.ticket, 5, 2.0)
    assert (view.sequences, view.active_blocks) == (0, 0)


def test_dynamo_adds_blocks_to_prefill_and_distinct_blocks_to_decode() -> None:
    made = chooser(Dynamo(0), (1, 2), ())
    load(made, "w1", prompt(1, 2, 3))
    request = Prompt(prompt(1, 2, 4), SIZE)
    first, second = made._workers.values()
    assert Dynamo(0).cost(first, request, 200) == pytest.approx(3.01 - 2 + 3)
    assert Dynamo(0).cost(second, request, 0) == pytest.approx(3.01 + 3.01 + 3 + 1)
    assert Dynamo(0, prefill_load_scale=4.0).cost(first, request, 200) == pytest.approx(4 * 1.01 + 3)


def test_cache_aware_takes_a_good_match_and_else_the_least_load_or_the_smallest_tree() -> None:
    good, poor = prompt(1, 2, 9), prompt(1, 7, 8, 9)
    for smallest in (True, False):
        made = chooser(CacheAware(0, miss_to_smallest_tree=smallest), (1, 2, 3), (5,), (5, 6))
        load(made, "w1", prompt(20))
        assert made.choose(good, 0.0).worker == "w0"
    assert (
        chooser(CacheAware(0, miss_to_smallest_tree=True), (1, 2, 3), (5,)).choose(poor, 0.0).worker == "w1"
    )


def test_cache_aware_goes_by_load_once_somebody_is_far_behind() -> None:
    made = chooser(CacheAware(0, miss_to_smallest_tree=False), (1, 2, 3), ())
    load(made, "w0", *[prompt(number) for number in range(100, 165)])
    assert made.choose(prompt(1, 2, 9), 0.0).worker == "w1"


def test_weighted_gives_the_prefix_a_weight_against_queue_and_kv() -> None:
    for weight, expected in ((1.0, "w1"), (4.0, "w0")):
        made = chooser(Weighted(0, prefix=weight), (1, 2), ())
        load(made, "w0", prompt(30, 31))
        # w0: weight x 200 / 301, less 1 for the longest queue and 1 for the fullest cache; w1: 0.
        assert made.choose(prompt(1, 2, 3), 0.0).worker == expected


def test_multiplicative_weighs_tokens_by_requests() -> None:
    made = chooser(Multiplicative(0), (1, 2, 3, 4), ())
    (first,) = load(made, "w0", prompt(1, 2, 3, 40))
    # w0: (101 queued + 1 new) x 2 requests; w1: 401 new x 1.
    assert made.choose(prompt(1, 2, 3, 4), 0.0).worker == "w0"
    made.first_token(first, 300, 1.0)
    load(made, "w0", *[prompt(number) for number in (50, 51)])
    # w0: (1 + 101 + 101 queued + 1 new) x 5 requests; w1: 401 new x 1.
    assert made.choose(prompt(1, 2, 3, 4), 0.0).worker == "w1"


def test_a_removed_worker_is_not_chosen_and_its_tickets_stay_valid() -> None:
    made = chooser(Dynamo(0), (1,), ())
    (ticket,) = load(made, "w0", prompt(1))
    made.remove_worker("w0")
    assert made.choose(prompt(1), 0.0).worker == "w1"
    made.release(ticket, 0, 1.0)
