"""Token ids of one request to events: parsers, stop strings, counts. No I/O."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from gateway.engines.base import EngineUsage, PromptLogprob, TokenLogprob
from gateway.serving.token_watch import TokenDetail, TokenWatch
from parsers.base import Finish, OutputEvent, OutputParser


class Emitter(Protocol):
    """Turns events into an answer."""

    def emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        """Events of one choice; `Finish` comes last and once."""
        ...

    def on_token(self, index: int, token: TokenDetail) -> None:
        """A token, before the events that it gives; only when the request asked for details of tokens."""
        ...

    def on_prompt(self, tokens: Sequence[TokenDetail]) -> None:
        """The prompt's tokens, before anything else; only when their log-probabilities were asked for."""
        ...

    def flush(self) -> None:
        """All that one read gave has been emitted."""
        ...


class Observer(Protocol):
    """Who wants to know how the generation goes; called inside `data_received`."""

    @property
    def pool(self) -> str:
        """Pool of the worker that generates."""
        ...

    def on_progress(self, new_tokens: int) -> None:
        """A read brought that many tokens."""
        ...

    def on_output(self) -> None:
        """The emitter has been given something; called at most once."""
        ...

    def on_stopped(self) -> None:
        """Every choice is finished although the worker would go on: end the generation there."""
        ...


class Choice:
    """One of the n answers."""

    __slots__ = ("finished", "parser", "tokens", "watch")

    def __init__(self, parser: OutputParser, watch: TokenWatch | None) -> None:
        """`watch` is for requests that need to look at each token by itself."""
        self.parser = parser
        self.watch = watch
        self.tokens = 0
        self.finished = False


class Generation:
    """The TokenSink of one request."""

    def __init__(
        self, choices: Sequence[Choice], emitter: Emitter, observer: Observer, *, gathers: bool = False
    ) -> None:
        """`gathers` says that the answer goes out whole: what a read brings may then be parsed together."""
        self.choices = choices
        self.usage: EngineUsage | None = None
        self.said: array[int] | None = array("I") if len(choices) == 1 else None
        """The ids so far, for another worker to go on from; None where they are not kept or not known."""
        self._gathers = gathers and len(choices) == 1 and choices[0].watch is None
        self._parsed = 0
        """Of `said`, where it is gathered."""
        self._emitter = emitter
        self._observer = observer
        self._new_tokens = 0
        self._has_output = False

    @property
    def finished(self) -> bool:
        """Every choice is."""
        return all(choice.finished for choice in self.choices)

    def go_on(self, observer: Observer) -> Generation:
        """Another worker goes on: parsers, counts and what has been emitted stay as they are."""
        self.usage = None
        self._observer = observer
        self._has_output = False
        return self

    def leave(self, observer: Observer) -> None:
        """That one does not listen any longer; without the two knowing each other both are freed at once."""
        if self._observer is observer:
            self._observer = _NOBODY

    @property
    def completion_tokens(self) -> int:
        return sum(choice.tokens for choice in self.choices)

    @property
    def reasoning_tokens(self) -> int:
        return sum(choice.parser.reasoning_tokens for choice in self.choices)

    def on_logprobs(self, index: int, logprobs: Sequence[TokenLogprob]) -> None:
        if (watch := self.choices[index].watch) is not None:
            watch.logprobs = logprobs

    def on_prompt_logprobs(self, logprobs: Sequence[PromptLogprob]) -> None:
        watch = self.choices[0].watch
        if watch is not None and (spell := watch.spell) is not None:
            self._emitter.on_prompt(
                [TokenDetail(t, spell(t), p, [(spell(one), q) for one, q in top]) for t, p, top in logprobs]
            )

    def on_tokens(self, index: int, token_ids: Sequence[int]) -> None:
        choice = self.choices[index]
        self._new_tokens += len(token_ids)
        if choice.finished:
            return
        if self.said is not None:
            self.said.extend(token_ids)
            if self._gathers:
                return
        if choice.watch is not None:
            self._one_by_one(index, choice, choice.watch, token_ids)
            return
        choice.tokens += len(token_ids)
        events = choice.parser.feed(token_ids)
        if not self._has_output:
            self._emit(index, events)
        elif events:
            self._emitter.emit(index, events)

    def on_text(self, index: int, text: str) -> None:
        choice = self.choices[index]
        self._parse_gathered()
        self.said = None
        self._new_tokens += 1
        if not choice.finished:
            choice.tokens += 1
            self._emit_kept(index, choice, choice.parser.feed_text(text))

    def on_finish(self, index: int, reason: str, stop_reason: int | str | None) -> None:
        choice = self.choices[index]
        if choice.finished:
            return
        self._parse_gathered()
        choice.finished = True
        events = choice.parser.finish(reason)
        if choice.watch is not None and stop_reason in choice.watch.stop_ids:
            *before, end = events
            assert isinstance(end, Finish)
            events = [*before, Finish(end.reason, stop_reason)]
        self._emit_kept(index, choice, events)

    def on_usage(self, usage: EngineUsage) -> None:
        self.usage = usage

    def flush(self) -> None:
        if self._gathers:
            self._parse_gathered()
        if self._new_tokens:
            self._observer.on_progress(self._new_tokens)
            self._new_tokens = 0
        self._emitter.flush()

    def _parse_gathered(self) -> None:
        if not self._gathers or self.said is None or len(self.said) == self._parsed:
            return
        token_ids = self.said[self._parsed :]
        self._parsed = len(self.said)
        self.choices[0].tokens += len(token_ids)
        self._emit(0, self.choices[0].parser.feed(token_ids))

    def _one_by_one(self, index: int, choice: Choice, watch: TokenWatch, token_ids: Sequence[int]) -> None:
        for detail in watch.look_at(token_ids):
            choice.tokens += 1
            if watch.spell is not None:
                self._emitter.on_token(index, detail)
            if not watch.hides(detail.token_id):
                watch.count(choice.tokens)
                self._emit_kept(index, choice, choice.parser.feed((detail.token_id,)))
            if choice.finished:
                return

    def _emit(self, index: int, events: Sequence[OutputEvent]) -> None:
        if not events:
            return
        self._emitter.emit(index, events)
        if not self._has_output:
            self._has_output = True
            self._observer.on_output()

    def _emit_kept(self, index: int, choice: Choice, events: Sequence[OutputEvent]) -> None:
        """Emit what stop strings leave of the events; a match finishes the choice."""
        stops = choice.watch.stops if choice.watch is not None else None
        if stops is None:
            self._emit(index, events)
            return
        kept = stops.filter(events)
        if stops.matched is not None:
            choice.finished = True
            kept.append(Finish("stop", stops.matched))
            if self.finished:
                self._observer.on_stopped()
        self._emit(index, kept)


class _Nobody:
    pool = ""

    def on_progress(self, new_tokens: int) -> None: ...

    def on_output(self) -> None: ...

    def on_stopped(self) -> None: ...


_NOBODY: Observer = _Nobody()

GenerationFactory = Callable[[Observer], Generation]
"""A fresh generation, for each attempt on a worker."""
