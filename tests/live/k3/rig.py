"""A real worker that has a tokenizer, behind two gateways: one hands it constraints, one does not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from loadtests.processes import wait_until
from tests.live.asker import Asker
from tests.live.gateway import LiveGateway
from tests.live.vocabulary import Vocabulary
from tests.live.worker import LiveWorker

HERE = Path(__file__).parent
READY_SECONDS = 60.0


def make_tokenizer(vocabulary: Path, directory: Path) -> Path:
    """A directory that an engine can load as a Hugging Face tokenizer with K3's vocabulary."""
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copy(vocabulary / "tiktoken.model", directory)
    shutil.copy(HERE / "hf/tokenization_k3.py", directory)
    config = {
        "tokenizer_class": "K3Tokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_k3.K3Tokenizer", None]},
        "model_max_length": 8192,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


class TokenizingWorker(LiveWorker):
    """A worker that can keep its output to a grammar."""

    def __init__(self, name: str, home: Path, log_dir: Path, tokenizer: Path) -> None:
        self.tokenizer = tokenizer
        self.cache = log_dir / "hf"
        super().__init__(name, home, log_dir)

    def options(self) -> dict[str, object]:
        options = {**super().options(), "tokenizer": self.tokenizer, "trust-remote-code": None}
        del options["skip-tokenizer-init"]
        return options

    def variables(self) -> dict[str, str]:
        return {"HF_HOME": str(self.cache)}


class Front(Asker):
    """One gateway before the worker."""

    def __init__(self, name: str, constrained_by: str, worker: str, tokenizer: Path, log_dir: Path) -> None:
        options = ["--worker", worker, "--constrained-by", constrained_by]
        self.gateway = LiveGateway(options, tokenizer, log_dir, name)
        super().__init__(self.gateway.client(), Vocabulary(tokenizer))

    def wait_ready(self) -> None:
        wait_until(f"{self.gateway!r} has its worker", self._ready, READY_SECONDS)

    def _ready(self) -> bool:
        return [worker["state"] for worker in self.gateway.workers()] == ["ready"]


class K3Rig:
    """The worker and both gateways."""

    def __init__(self, home: Path, vocabulary: Path, log_dir: Path) -> None:
        tokenizer = make_tokenizer(vocabulary, log_dir / "tokenizer")
        self.worker = TokenizingWorker("tokenizing", home, log_dir, tokenizer)
        self.constrained = Front("constrained", "worker", self.worker.url, vocabulary, log_dir)
        self.free = Front("free", "prompt", self.worker.url, vocabulary, log_dir)

    @property
    def processes(self) -> tuple[Any, ...]:
        return (self.constrained.gateway, self.free.gateway, self.worker)

    def start(self) -> None:
        for process in self.processes:
            process.start()
        self.worker.wait_ready()
        for front in (self.constrained, self.free):
            front.wait_ready()

    def stop(self) -> None:
        for process in self.processes:
            process.stop()
