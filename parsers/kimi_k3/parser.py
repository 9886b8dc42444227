"""Kimi-K3's answer as events: one pass over token ids, driven by the table in `channels`.

Only control ids make structure, so a marker that the model quotes in ordinary tokens stays text. Work
per token is constant; what is held back is one tag, or one argument that is not a string.

Most calls bring one ordinary token in a state that shows text: `_known` answers those, and leaves the
rest, which is everything that can change a state, to the slow way.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Mapping, Sequence

from parsers.base import (
    ContentDelta,
    Detokenizer,
    Finish,
    FinishedCall,
    OutputEvent,
    OutputOptions,
    ReasoningDelta,
)
from parsers.kimi_k3.arguments import ToolCallWriter
from parsers.kimi_k3.channels import (
    AT_END,
    END_OF_MESSAGE,
    HIDES_KNOWN_TAGS,
    SHOWS_TEXT,
    TABLE,
    Effect,
    State,
)
from parsers.kimi_k3.markers import (
    CLOSE,
    CLOSE_ID,
    FIRST_CONTROL_ID,
    OPEN,
    OPEN_ID,
    SEP,
    SEP_ID,
    STOP_IDS,
    Tag,
    TagReader,
)
from parsers.kimi_k3.pieces import UNKNOWN, Known, content_of, reasoning_of, string_pieces_of, whole_text
from parsers.kimi_k3.text_scanner import TextScanner

_NO_ATTRIBUTES: Mapping[str, str] = {}


class KimiK3Parser:
    """Implements `parsers.base.OutputParser` for one choice."""

    def __init__(self, options: OutputOptions, detokenizer: Detokenizer) -> None:
        self.reasoning_retracted = False
        self._detokenizer = detokenizer
        self._scanner = TextScanner()
        self._events: list[OutputEvent] = []
        self._calls = ToolCallWriter(
            enabled=bool(options.tools) and options.tool_choice != "none",
            parallel=options.parallel_tool_calls is not False,
            ids=options.tool_call_ids,
        )
        self._thought: list[str] = []
        """The first reasoning, kept until it is certain that it is none."""
        self._may_retract = True
        self._reasoning_tokens = 0
        self._held: list[str] = []
        self._tag: TagReader | None = None
        self._state = State.DONE
        self._sink: _Sink = _drop
        self._known: Known = UNKNOWN
        self._keeps = False
        """Whether single tokens are kept in `_recent`."""
        self._recent = array("I")
        """Single tokens of reasoning or of a string, until something else comes."""
        self._ways: dict[State, Known] = {
            State.THINK: reasoning_of(detokenizer),
            State.RESPONSE: content_of(detokenizer),
        }
        self._enter(State.THINK if options.thinking else State.RESPONSE)
        self._know()

    def __repr__(self) -> str:
        return f"<KimiK3Parser {self._state.name}, {self._calls.complete} calls>"

    @property
    def reasoning_tokens(self) -> int:
        return self._reasoning_tokens + (len(self._recent) if self._state is State.THINK else 0)

    @property
    def incomplete_calls(self) -> Collection[int]:
        return self._calls.incomplete

    def finished_calls(self) -> Sequence[FinishedCall]:
        return self._calls.finished()

    def feed(self, token_ids: Sequence[int]) -> Sequence[OutputEvent]:
        try:
            (token_id,) = token_ids
        except ValueError:
            return self._feed_slowly(token_ids)
        events = self._known[token_id]
        if events is None:
            return self._feed_one(token_id)
        if self._keeps:
            self._recent.append(token_id)
        return events

    def _feed_one(self, token_id: int) -> Sequence[OutputEvent]:
        """A control token, or one that adds to a tag, as most do that are not known."""
        if self._detokenizer.pending:
            return self._feed_slowly((token_id,))
        tag = self._tag
        if token_id < FIRST_CONTROL_ID:
            text = whole_text(self._detokenizer.texts, token_id) if tag is not None else None
            if tag is None or not text:
                return self._feed_slowly((token_id,))
            if tag.feed(text, 1):
                return ()
        events = self._collect()
        self._take_recent()
        if token_id < FIRST_CONTROL_ID:
            self._release_tag()
        else:
            self._control(token_id)
        self._know()
        return events

    def _feed_slowly(self, token_ids: Sequence[int]) -> list[OutputEvent]:
        events = self._collect()
        self._take_recent()
        detokenizer = self._detokenizer
        push = detokenizer.push
        run: list[str] = []
        for token_id in token_ids:
            if 0 <= token_id < FIRST_CONTROL_ID:
                run.append(push(token_id))
            else:
                if detokenizer.pending:
                    # The rest of this character is awaited in vain.
                    self._sink(self, "".join(run) + detokenizer.flush(), len(run))
                    run = []
                elif run:
                    self._sink(self, "".join(run), len(run))
                    run = []
                self._control(token_id)
        if run:
            self._sink(self, "".join(run), len(run))
        self._know()
        return events

    def feed_text(self, text: str) -> list[OutputEvent]:
        """The same for a worker that sends text and no ids; reasoning tokens are then not counted."""
        events = self._collect()
        self._known, self._keeps = UNKNOWN, False
        self._take_recent()
        for piece in self._scanner.feed(text):
            if isinstance(piece, str):
                self._sink(self, piece, 0)
            else:
                self._control(piece)
        return events

    def finish(self, engine_reason: str) -> list[OutputEvent]:
        """The end: an unfinished tag and half a character are dropped, then `Finish`."""
        events = self._collect()
        self._take_recent()
        if self._tag is None:
            self._sink(self, self._scanner.finish(), 0)
        if self._state in AT_END:
            self._apply(AT_END[self._state], None)
        self._enter(State.DONE)
        called = engine_reason == "stop" and self._calls.complete
        events.append(Finish("tool_calls" if called else engine_reason))
        return events

    def _collect(self) -> list[OutputEvent]:
        """Where events go from now on."""
        events: list[OutputEvent] = []
        self._events = self._calls.events = events
        return events

    # Where text goes, by state.

    def _reason(self, text: str, tokens: int) -> None:
        self._reasoning_tokens += tokens
        if text:
            self._events.append(ReasoningDelta(text))
            if self._may_retract:
                self._thought.append(text)

    def _respond(self, text: str, tokens: int) -> None:
        if text:
            self._events.append(ContentDelta(text))

    def _argue(self, text: str, tokens: int) -> None:
        if text:
            self._calls.text(text)

    def _hold(self, text: str, tokens: int) -> None:
        self._held.append(text)

    def _read_tag(self, text: str, tokens: int) -> None:
        if self._tag and not self._tag.feed(text, tokens):
            self._release_tag()

    # The same for one ordinary token.

    def _know(self) -> None:
        """Choose what answers single tokens; good until something else comes."""
        self._known, self._keeps = UNKNOWN, False
        if self._detokenizer.pending or self._tag is not None:
            return
        if self._state is State.ARGUMENT:
            if self._calls.in_string:
                self._known, self._keeps = string_pieces_of(self._detokenizer, self._calls.index), True
        elif self._state in self._ways:
            self._known, self._keeps = self._ways[self._state], self._state is State.THINK

    def _take_recent(self) -> None:
        """What single tokens said goes where it would have gone at once."""
        recent = self._recent
        if not recent:
            return
        if self._state is State.ARGUMENT:
            self._calls.pieces.append(self._text_of(recent))
        else:
            self._reasoning_tokens += len(recent)
            if self._may_retract:
                self._thought.append(self._text_of(recent))
        self._recent = array("I")

    def _text_of(self, tokens: Sequence[int]) -> str:
        texts = self._detokenizer.texts
        return "".join([texts[token] or "" for token in tokens])

    # What control tokens do.

    def _control(self, token_id: int) -> None:
        if self._state is State.DONE:
            return
        if token_id in (OPEN_ID, CLOSE_ID):
            if self._tag is not None:
                self._release_tag()
            self._tag = TagReader(OPEN if token_id == OPEN_ID else CLOSE)
            self._sink = KimiK3Parser._read_tag
        elif token_id == SEP_ID:
            self._end_tag()
        elif token_id in STOP_IDS:
            self._tag = None
            self._step(END_OF_MESSAGE, None)

    def _end_tag(self) -> None:
        tag = self._tag.finish() if self._tag else None
        shown = tag is None or self._state not in HIDES_KNOWN_TAGS
        if tag is not None and tag.name in TABLE[self._state]:
            self._tag = None
            self._step(tag.name, tag)
        elif shown:
            self._release_tag()
            self._literal(SEP, 0)
        else:
            self._drop_tag()

    def _release_tag(self) -> None:
        """What looked like a tag is none: in a channel that shows text it is text."""
        if tag := self._drop_tag():
            self._literal(tag.text, tag.tokens)

    def _drop_tag(self) -> TagReader | None:
        tag, self._tag = self._tag, None
        self._sink = _SINKS.get(self._state, _drop)
        return tag

    def _literal(self, text: str, tokens: int) -> None:
        if self._state in SHOWS_TEXT:
            self._sink(self, text, tokens)

    def _step(self, name: str, tag: Tag | None) -> None:
        state, effects = TABLE[self._state][name]
        leaves = self._state is State.THINK and state is not State.THINK
        if leaves and Effect.RETRACT_THOUGHT not in effects:
            self._forget_thought()
        for effect in effects:
            self._apply(effect, tag)
        if self._state is not State.DONE:
            self._enter(state)

    def _enter(self, state: State) -> None:
        self._state = state
        self._held = []
        self._sink = _SINKS.get(state, _drop)

    def _apply(self, effect: Effect, tag: Tag | None) -> None:
        _EFFECTS[effect](self, tag.attributes if tag else _NO_ATTRIBUTES)

    def _show_held(self) -> None:
        self._respond("".join(self._held), 0)

    def _new_message(self, attributes: Mapping[str, str]) -> None:
        if attributes.get("role") != "assistant":
            self._enter(State.DONE)

    def _retract_thought(self) -> None:
        if not self._may_retract:
            return
        text = "".join(self._thought)
        self._forget_thought()
        self._reasoning_tokens = 0
        if text:
            self.reasoning_retracted = True
            self._events.append(ContentDelta(text))

    def _forget_thought(self) -> None:
        self._may_retract = False
        self._thought = []


# No parser refers to itself, so that all of it is freed with its answer.

_Sink = Callable[[KimiK3Parser, str, int], None]


def _drop(parser: KimiK3Parser, text: str, tokens: int) -> None:
    pass


_SINKS: Mapping[State, _Sink] = {
    State.THINK: KimiK3Parser._reason,
    State.AFTER_THINK: KimiK3Parser._hold,
    State.RESPONSE: KimiK3Parser._respond,
    State.ARGUMENT: KimiK3Parser._argue,
    State.JSON: KimiK3Parser._argue,
}
_EFFECTS: Mapping[Effect, Callable[[KimiK3Parser, Mapping[str, str]], None]] = {
    Effect.RETRACT_THOUGHT: lambda parser, _: parser._retract_thought(),
    Effect.SHOW_HELD: lambda parser, _: parser._show_held(),
    Effect.BEGIN_CALL: lambda parser, attributes: parser._calls.begin(attributes.get("tool")),
    Effect.BEGIN_ARGUMENT: lambda parser, attributes: parser._calls.begin_argument(attributes),
    Effect.BEGIN_JSON: lambda parser, _: parser._calls.begin_json(),
    Effect.END_VALUE: lambda parser, _: parser._calls.end_value(),
    Effect.END_CALL: lambda parser, _: parser._calls.end(),
    Effect.RECOVER_CALL: lambda parser, _: parser._calls.recover(),
    Effect.ABANDON_CALL: lambda parser, _: parser._calls.abandon(),
    Effect.NEW_MESSAGE: lambda parser, attributes: parser._new_message(attributes),
}
