"""The states of an answer and what each tag does in them, as a table.

The model thinks, responds, and calls tools, each in a channel of its own:

    THINK --/think--> AFTER_THINK --response--> RESPONSE --/response--> BETWEEN --tools--> TOOLS
    TOOLS --call--> CALL --argument--> ARGUMENT --/argument--> CALL --/call--> TOOLS --/tools--> BETWEEN

Real output leaves ends out; the table says what each missing end means. A tag that a state does not list
is dropped by the states that drop text, and by the two that show it when its name is known; otherwise
it is text like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, auto
from typing import NamedTuple


class State(IntEnum):
    """Integers, because a plain enumeration's members are slow to look up by."""

    THINK = auto()
    AFTER_THINK = auto()
    """Between reasoning and response. Text here is held: a response's end would make it the response."""
    RESPONSE = auto()
    BETWEEN = auto()
    TOOLS = auto()
    CALL = auto()
    ARGUMENT = auto()
    JSON = auto()
    DONE = auto()


class Effect(IntEnum):
    """What a transition does beside changing the state; the parser has a method for each."""

    RETRACT_THOUGHT = auto()
    """The reasoning was the response: its own end is missing and the response's came."""
    SHOW_HELD = auto()
    BEGIN_CALL = auto()
    BEGIN_ARGUMENT = auto()
    BEGIN_JSON = auto()
    END_VALUE = auto()
    END_CALL = auto()
    RECOVER_CALL = auto()
    ABANDON_CALL = auto()
    NEW_MESSAGE = auto()
    """A message begins inside this one: the answer is over unless the model repeats its own opener."""


class Step(NamedTuple):
    state: State
    effects: tuple[Effect, ...] = ()


END_OF_MESSAGE = "/message"
"""Also what the control token `<|end_of_msg|>` does."""

_Row = dict[str, Step]

_CHANNELS: _Row = {
    "think": Step(State.THINK),
    "response": Step(State.RESPONSE),
    "tools": Step(State.TOOLS),
    "call": Step(State.CALL, (Effect.BEGIN_CALL,)),
    "/message": Step(State.DONE),
}


def _ending(row: _Row, *effects: Effect) -> _Row:
    """A row whose steps first do what ends the state."""
    return {tag: Step(step.state, (*effects, *step.effects)) for tag, step in row.items()}


def _value_row(own_end: str) -> _Row:
    """Inside a value only what must be structure is; every other tag is part of the value."""
    return {
        own_end: Step(State.CALL, (Effect.END_VALUE,)),
        "argument": Step(State.ARGUMENT, (Effect.END_VALUE, Effect.BEGIN_ARGUMENT)),
        "/call": Step(State.TOOLS, (Effect.END_VALUE, Effect.END_CALL)),
        "/tools": Step(State.BETWEEN, (Effect.END_VALUE, Effect.END_CALL)),
        "call": Step(State.CALL, (Effect.ABANDON_CALL, Effect.BEGIN_CALL)),
        "/message": Step(State.DONE, (Effect.ABANDON_CALL,)),
    }


TABLE: Mapping[State, Mapping[str, Step]] = {
    State.THINK: {
        **_CHANNELS,
        "/think": Step(State.AFTER_THINK),
        "/response": Step(State.BETWEEN, (Effect.RETRACT_THOUGHT,)),
        "message": Step(State.THINK, (Effect.NEW_MESSAGE,)),
    },
    State.AFTER_THINK: {
        **_CHANNELS,
        "/response": Step(State.BETWEEN, (Effect.SHOW_HELD,)),
        "message": Step(State.AFTER_THINK, (Effect.NEW_MESSAGE,)),
    },
    State.RESPONSE: {
        **_CHANNELS,
        "/response": Step(State.BETWEEN),
        "message": Step(State.RESPONSE, (Effect.NEW_MESSAGE,)),
    },
    State.BETWEEN: {**_CHANNELS, "message": Step(State.BETWEEN, (Effect.NEW_MESSAGE,))},
    State.TOOLS: {
        **_CHANNELS,
        "/tools": Step(State.BETWEEN),
        "/response": Step(State.BETWEEN),
        "message": Step(State.TOOLS, (Effect.NEW_MESSAGE,)),
    },
    State.CALL: {
        **_ending(_CHANNELS, Effect.END_CALL),
        "argument": Step(State.ARGUMENT, (Effect.BEGIN_ARGUMENT,)),
        "json": Step(State.JSON, (Effect.BEGIN_JSON,)),
        "/call": Step(State.TOOLS, (Effect.END_CALL,)),
        "/tools": Step(State.BETWEEN, (Effect.END_CALL,)),
        # The model begins anew: a call without any element was a false start.
        "call": Step(State.CALL, (Effect.RECOVER_CALL, Effect.BEGIN_CALL)),
        "message": Step(State.BETWEEN, (Effect.END_CALL, Effect.NEW_MESSAGE)),
    },
    State.ARGUMENT: _value_row("/argument"),
    State.JSON: _value_row("/json"),
    State.DONE: {},
}

# What the end of the stream does, where that is not nothing.
AT_END: Mapping[State, Effect] = {
    State.CALL: Effect.RECOVER_CALL,
    State.ARGUMENT: Effect.ABANDON_CALL,
    State.JSON: Effect.ABANDON_CALL,
}

SHOWS_TEXT = frozenset({State.THINK, State.RESPONSE, State.ARGUMENT, State.JSON})
HIDES_KNOWN_TAGS = frozenset({State.THINK, State.RESPONSE})
