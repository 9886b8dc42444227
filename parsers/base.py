"""What a model format is: chat in, segments out; token ids in, typed output events out.

Everything here is pure. A format never sees a socket, a clock or a tokenizer file: it is handed a
`Detokenizer` (ids to text) by its caller and returns values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import msgspec


class Segment(NamedTuple):
    """A piece of prompt text that is tokenized on its own.

    `is_control` pieces are looked up as control tokens; the others are encoded as ordinary text, so
    that nothing a user writes can become structure.
    """

    text: str
    is_control: bool


class SegmentRun(NamedTuple):
    """Segments that always come one after another: each is tokenized alone, all are looked up at once.

    A format makes a fixed number of them, of its own constant text: a tokenizer keeps them for good.
    """

    key: str
    """Tells it from every other run and from every control token."""
    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, *segments: Segment) -> SegmentRun:
        return cls(repr(segments), segments)


Piece = Segment | SegmentRun


class Chat(msgspec.Struct, frozen=True, kw_only=True):
    """A chat as the encoder needs it; JSON values are kept as plain Python values."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Any = None
    response_format: Mapping[str, Any] | None = None
    reasoning_effort: str | None = None
    thinking: bool | Mapping[str, Any] | None = None
    """As the request has it: a switch, or an object such as `{"type": "disabled"}`."""
    parallel_tool_calls: bool | None = None
    structured_outputs: Mapping[str, Any] | None = None
    """What the response must be, as vLLM's field of that name says it: an object with one constraint."""
    template_kwargs: Mapping[str, Any] = {}
    strict_efforts: bool = False
    """Refuse the reasoning efforts that the model does not have, instead of taking the nearest."""


ConstraintKind = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]


class Constraint(msgspec.Struct, frozen=True):
    """What a worker keeps generated tokens to, from the first one on, reasoning included."""

    kind: ConstraintKind
    value: Any
    """A JSON schema, true, a pattern, a list of texts, a grammar, or a structural tag."""


class EncodedChat(NamedTuple):
    """A prompt, and what the output parser must know about how it ends."""

    pieces: list[Piece]
    thinking: bool
    """The prompt ends inside the reasoning channel."""
    uncounted_tokens: int
    """Tokens of the generation stub that a usage report leaves out."""
    tools: Sequence[Mapping[str, Any]] | None = None
    """All tools the chat declares, those in its messages too: what `OutputOptions.tools` should get."""
    constraint: Constraint | None = None
    """What the worker must keep the answer to, when the chat asks for that."""
    unsized_images: Sequence[str] = ()
    """Places of images whose size is not known: the prompt holds the model's placeholder for them."""

    @property
    def segments(self) -> list[Segment]:
        """The prompt with its runs taken apart."""
        return [
            segment
            for piece in self.pieces
            for segment in (piece.segments if isinstance(piece, SegmentRun) else (piece,))
        ]


class OutputOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What of a request matters to the parser of its output."""

    thinking: bool
    tools: Sequence[Mapping[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    tool_call_ids: Literal["random", "name_index"] = "random"


class ReasoningDelta(msgspec.Struct, frozen=True, gc=False):
    text: str


class ContentDelta(msgspec.Struct, frozen=True, gc=False):
    text: str


class ToolCallStart(msgspec.Struct, frozen=True, gc=False):
    index: int
    id: str
    name: str


class ToolArgumentsDelta(msgspec.Struct, frozen=True, gc=False):
    index: int
    text: str
    """A piece of the arguments' JSON text; the pieces of one call concatenate to its arguments."""


class Finish(msgspec.Struct, frozen=True, gc=False):
    reason: str
    """An OpenAI finish_reason: stop, length, tool_calls, or what the engine said (abort, error)."""
    stop: str | int | None = None
    """The stop string or the stop token id, of those that the request names, that ended it."""


OutputEvent = ReasoningDelta | ContentDelta | ToolCallStart | ToolArgumentsDelta | Finish


class FinishedCall(NamedTuple):
    """A complete tool call, for looking at what the model said; clients have been given its events."""

    name: str
    arguments: Any
    """The arguments' JSON value; None when they are no JSON."""


class Detokenizer(Protocol):
    """Ids to text, incrementally; never gives half a character."""

    texts: Sequence[str | None]
    """Text by id, None where it is no whole characters: what `push` gives when nothing is pending."""
    pending: bytes
    """The beginning of a character whose end is awaited."""
    memo: dict[Any, Any]
    """For what a format makes of single tokens; shared by all detokenizers of the vocabulary."""

    def push(self, token_id: int) -> str:
        """Text that became complete with this token; may be empty."""
        ...

    def flush(self) -> str:
        """What is held back, invalid bytes as U+FFFD; the state is as new afterwards."""
        ...


class OutputParser(Protocol):
    """Turns one choice's token ids into events. The same ids give the same answer however they are cut."""

    @property
    def reasoning_tokens(self) -> int:
        """Tokens inside the reasoning channel so far, markers excluded."""
        ...

    reasoning_retracted: bool
    """What was given as reasoning was the answer and was given again as content: a whole answer has no
    reasoning. A stream cannot take it back."""

    @property
    def incomplete_calls(self) -> Collection[int]:
        """Indices of calls that end inside a value: a whole answer leaves them out."""
        ...

    def finished_calls(self) -> Sequence[FinishedCall]:
        """The complete calls so far."""
        ...

    def feed(self, token_ids: Sequence[int]) -> Sequence[OutputEvent]: ...

    def feed_text(self, text: str) -> Sequence[OutputEvent]:
        """The same for a worker that sends text and no ids."""
        ...

    def finish(self, engine_reason: str) -> Sequence[OutputEvent]:
        """End of the stream: what was held back, then exactly one `Finish`."""
        ...


class KvShape(msgspec.Struct, frozen=True):
    """How much KV cache a prompt has, as one rank of a decode worker reads it."""

    bytes_per_token: float
    """In all attention layers together."""
    attention_layers: int
    state_bytes: float = 0
    """Of the recurrent layers together, however long the prompt is."""
    state_layers: int = 0

    def bytes_of(self, tokens: int) -> float:
        return tokens * self.bytes_per_token + self.state_bytes

    def pieces_of(self, tokens: int, block_size: int) -> int:
        """Pieces of memory, where no two blocks lie side by side."""
        return -(-tokens // block_size) * self.attention_layers + self.state_layers


class ModelFormat(Protocol):
    """One model family's text protocol."""

    name: str
    family: str
    """Formats of one family read the same vocabulary files."""
    stop_token_ids: Sequence[int]
    """Ids that end a generation; a worker is told so when it has no tokenizer of its own."""
    image_marker: str | None
    """The control token that an image begins with; None for a model that sees none."""

    @property
    def kv_shape(self) -> KvShape | None:
        """None where it depends on the model that is served."""
        ...

    def encode(self, chat: Chat) -> EncodedChat:
        """The prompt of a chat.

        Raises `FormatError` for a chat that the format cannot express.
        """
        ...

    def parser(self, options: OutputOptions, detokenizer: Detokenizer) -> OutputParser: ...

    def load_vocabulary(self, ranks: bytes | None = None) -> Vocabulary:
        """A tokenizer from the bytes of a `tiktoken.model` file; None is the small one in the package."""
        ...


class Vocabulary(Protocol):
    """A tokenizer that knows control tokens and the family's cutting rules."""

    size: int
    """Ids are 0 <= id < size."""

    def encode_text(self, text: str) -> Sequence[int]:
        """Ids of ordinary text; control spellings in it stay text. A numpy uint32 array when long."""
        ...

    def control_id(self, text: str) -> int:
        """Id of a control token. Raises KeyError."""
        ...

    def token_bytes(self) -> list[bytes]:
        """Bytes of each id; control tokens give their spelling, unused slots b""."""
        ...


class FormatError(ValueError):
    """A chat the format cannot express; `param` names the field, in OpenAI's way (`messages[2].role`)."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param
