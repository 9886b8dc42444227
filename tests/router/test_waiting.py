"""The line of waiting requests against a plain sorted list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.waiting import Ticket, WaitingLine

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "again"]), st.integers(0, 30), st.integers(-2, 2), st.integers(0, 3)
    )
)


@given(STEPS, st.integers(0, 6))
def test_the_line_is_a_bounded_sorted_list(steps: list[tuple[str, int, int, int]], limit: int) -> None:
    line: WaitingLine[int] = WaitingLine(limit)
    lane_of: dict[Ticket[int], int] = {}
    tickets: list[Ticket[int]] = []
    for what, which, priority, lane in steps:
        if what == "join":
            tickets.append(Ticket(len(tickets), priority, float(which % 3), len(tickets)))
        if not tickets:
            continue
        ticket = tickets[-1] if what == "join" else tickets[which % len(tickets)]
        if what == "leave":
            line.leave(ticket)
            lane_of.pop(ticket, None)
        elif ticket not in lane_of:
            lane_of[ticket] = lane
            bumped = line.join(lane, ticket)
            last = max(lane_of, key=lambda each: each.order)
            assert bumped is (last if len(lane_of) > limit else None)
            if bumped is not None:
                del lane_of[bumped]
        assert len(line) == len(lane_of)
        assert set(line.tickets()) == set(lane_of)
        firsts = {
            lane: min((t for t in lane_of if lane_of[t] == lane), key=lambda each: each.order)
            for lane in set(lane_of.values())
        }
        assert line.heads() == sorted(firsts.items(), key=lambda each: each[1].order)
        assert all(line.head(lane) is firsts.get(lane) for lane in range(4))


def test_priority_then_deadline_then_age_decide() -> None:
    line: WaitingLine[str] = WaitingLine(9)
    for number, (name, priority, deadline) in enumerate(
        [("late", 0, 9.0), ("soon", 0, 5.0), ("urgent", -1, 9.0), ("later", 0, 9.0)]
    ):
        line.join("lane", Ticket(name, priority, deadline, number))
    order = []
    while heads := line.heads():
        order.append(heads[0][1].item)
        line.leave(heads[0][1])
    assert order == ["urgent", "soon", "late", "later"]
