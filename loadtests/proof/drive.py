"""Asks a gateway and reads what it predicted: from its admin port before, from its log afterwards."""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from loadtests.proof.mix import Ask, Mix
from loadtests.proof.score import Outcome

_LINE = re.compile(r"request (\S+) .*?on (\S+): \d+ prompt tokens, (\d+) cached, (\d+) expected")
_SECONDS = 120


class Asked(msgspec.Struct, frozen=True):
    """A request that was answered with 200, before the log has been read."""

    ask: Ask
    request_id: str
    attention: dict[str, int]
    """What attention alone promised, by worker."""
    rules: dict[str, str]
    """The rule in use, by worker."""
    started: float
    ended: float


class Driver:
    """A client of one gateway."""

    def __init__(self, url: str, admin_url: str, model: str, log: Path) -> None:
        """`log` is the gateway's own, at level info or debug."""
        self._url = url
        self._admin_url = admin_url
        self._model = model
        self._log = log
        self.failed: list[str] = []
        """Answers that were none."""

    def ask(self, ask: Ask) -> Asked | None:
        body = {
            "model": self._model,
            "prompt": list(ask.prompt),
            "max_tokens": ask.answer_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "logit_bias": {str(ask.answer_token): 100},
        }
        if ask.salt is not None:
            body["cache_salt"] = ask.salt
        explained = json.loads(_post(f"{self._admin_url}/v1/route", body)[0])
        candidates = explained["legs"]["aggregated"]["candidates"]
        started = time.monotonic()
        try:
            _, request_id = _post(f"{self._url}/v1/completions", body)
        except OSError as error:
            self.failed.append(f"{ask.kind}: {error} {_details(error)}")
            return None
        return Asked(
            ask=ask,
            request_id=request_id,
            attention={c["target"]["worker"]: c["by_rule"].get("attention-only", 0) for c in candidates},
            rules={c["target"]["worker"]: c["rule"] for c in candidates},
            started=started,
            ended=time.monotonic(),
        )

    def one_by_one(self, mix: Mix, count: int, between: Callable[[int], None]) -> list[Outcome]:
        """`between` is called before each request with its number."""
        asked = []
        for number in range(count):
            between(number)
            asked.append(self.ask(mix.next()))
        return self.outcomes(asked)

    def at_once(self, mixes: list[Mix], think: float, enough: Callable[[int], bool]) -> list[Outcome]:
        """A client for each mix, with a pause between its requests, until `enough(answers so far)`."""
        asked: list[Asked | None] = []

        def client(mix: Mix) -> None:
            while not enough(len(asked)):
                asked.append(self.ask(mix.next()))
                time.sleep(think)

        with ThreadPoolExecutor(len(mixes)) as pool:
            for future in [pool.submit(client, mix) for mix in mixes]:
                future.result()
        return self.outcomes(asked)

    def outcomes(self, asked: list[Asked | None]) -> list[Outcome]:
        """With what the log says of them."""
        logged = dict(self._logged())
        outcomes = []
        for each in asked:
            if each is None:
                continue
            worker, reported, predicted = logged[each.request_id]
            attention = each.attention.get(worker)
            rule = each.rules.get(worker, "")
            outcomes.append(
                Outcome(each.ask, worker, predicted, reported, attention, each.started, each.ended, rule)
            )
        return outcomes

    def _logged(self) -> Iterator[tuple[str, tuple[str, int, int]]]:
        for line in self._log.read_text(errors="replace").splitlines():
            if (found := _LINE.search(line)) is not None:
                yield found[1], (found[2], int(found[3]), int(found[4]))


def _post(url: str, body: dict[str, Any]) -> tuple[bytes, str]:
    """The answer and its request id."""
    message = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(message, timeout=_SECONDS) as answer:
        return answer.read(), answer.headers.get("x-request-id", "")


def _details(error: OSError) -> str:
    read = getattr(error, "read", None)
    return read()[:300].decode(errors="replace") if read is not None else ""
