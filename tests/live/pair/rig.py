"""A prefill worker, a decode worker and an aggregated one, and two gateways in front of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loadtests.processes import wait_until
from tests.live.asker import Asker
from tests.live.gateway import LiveGateway
from tests.live.pair.tap import Exchange, Tap
from tests.live.pair.workers import LEASE_SECONDS, AttentionWorker, DecodeWorker, PrefillWorker
from tests.live.vocabulary import Vocabulary
from tests.live.worker import LiveWorker

REJOIN_SECONDS = 60.0
COUNT_SECONDS = 10.0


class Front(Asker):
    """One gateway and its client."""

    def __init__(
        self, name: str, workers: dict[str, tuple[str, str]], tokenizer: Path, log_dir: Path
    ) -> None:
        """`workers` is role and URL by name; they are configured by a file, as roles must be."""
        self.config = config = log_dir / f"{name}.toml"
        config.write_text(_toml(workers))
        self.gateway = LiveGateway(["--config", str(config)], tokenizer, log_dir, name)
        self._names = list(workers)
        super().__init__(self.gateway.client(), Vocabulary(tokenizer))

    def wait_connected(self) -> None:
        """Until all its workers are ready and those that publish KV events are followed."""
        wait_until(f"{self.gateway!r} has {self._names}", self._connected, REJOIN_SECONDS)

    def _connected(self) -> bool:
        workers = self.gateway.workers()
        feeds = [feed["state"] for worker in workers for feed in worker["feeds"]]
        published = len([worker for worker in workers if worker["role"] != "decode"])
        return all(worker["state"] == "ready" for worker in workers) and feeds == ["exact"] * published


class Pair:
    """All of it. `pair` knows the prefill and the decode worker alone, `mixed` the aggregated one as well."""

    def __init__(self, home: Path, tokenizer: Path, log_dir: Path) -> None:
        self.prefill = PrefillWorker("prefill", home, log_dir)
        self.decode = DecodeWorker("decode", home, log_dir)
        self.aggregated = AttentionWorker("aggregated", home, log_dir)
        self.tap = Tap(self.decode.port)
        workers = {"prefill": ("prefill", self.prefill.url), "decode": ("decode", self.tap.url)}
        self.pair = Front("pair", workers, tokenizer, log_dir)
        workers = {**workers, "aggregated": ("aggregated", self.aggregated.url)}
        self.mixed = Front("mixed", workers, tokenizer, log_dir)
        self.vocabulary = self.pair.vocabulary

    @property
    def workers(self) -> tuple[LiveWorker, ...]:
        return (self.prefill, self.decode, self.aggregated)

    @property
    def processes(self) -> tuple[LiveGateway | LiveWorker, ...]:
        return (self.pair.gateway, self.mixed.gateway, *self.workers)

    def start(self) -> None:
        """All at once: the gateways find the workers when they come."""
        self.tap.start()
        for process in self.processes:
            process.start()
        self.wait_ready()

    def stop(self) -> None:
        for process in self.processes:
            process.stop()
        self.tap.stop()

    def wait_ready(self) -> None:
        for worker in self.workers:
            worker.wait_ready()
        for front in (self.pair, self.mixed):
            front.wait_connected()

    def aggregated_ids(self, token_ids: Sequence[int], max_tokens: int = 16) -> list[int]:
        """What the plain worker says to a prompt that it has never seen, asked directly."""
        return self.aggregated.greedy(token_ids, max_tokens)

    def decoded(self, request_id: str) -> Exchange:
        """The decode leg of a request that was answered, as it went over the wire."""
        found = [exchange for exchange in self.tap.exchanges if exchange.body.get("request_id") == request_id]
        assert len(found) == 1, f"{len(found)} decode legs of {request_id}"
        return found[0]


def _toml(workers: dict[str, tuple[str, str]]) -> str:
    lines = [f"kv_lease_seconds = {LEASE_SECONDS}"]
    for name, (role, url) in workers.items():
        lines += ["", "[[workers]]", f'name = "{name}"', f'role = "{role}"', f'url = "{url}"']
        if role == "aggregated":
            # One at a time, so that the pair is used although it takes longer.
            lines.append("max_num_seqs = 1")
    return "\n".join(lines) + "\n"
