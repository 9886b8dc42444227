"""`python -m loadtests.gpu EXPERIMENT ...`: real vLLM workers on one or two GPUs behind the gateway."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from loadtests.gpu.answers import compare_answers
from loadtests.gpu.crowd import crowd
from loadtests.gpu.fabric import SETTINGS, probe, torch_copies
from loadtests.gpu.front import Front, Member, gateway
from loadtests.gpu.handoff import measure_handoffs
from loadtests.gpu.hybrid import hits
from loadtests.gpu.record import Record
from loadtests.gpu.shapes import write_model
from loadtests.gpu.slow_path import LABELS, LEARNING_SECONDS, link_check, where_requests_go
from loadtests.gpu.workers import ROOT, Seat, Site, Worker, running

SIZES = (1_000, 8_000, 32_000, 60_000)
HYBRID_SIZES = (3_000, 9_000, 20_000)
ATTENTION_FLAGS = ("--block-size", "64")
HYBRID_FLAGS = ("--gdn-prefill-backend", "triton")
HYBRID_ENV = {"VLLM_SSM_CONV_STATE_LAYOUT": "DS"}
SAME_IN_ANY_BATCH = {"VLLM_BATCH_INVARIANT": "1"}
"""A token's numbers do not depend on what it is computed with: equal KV caches give equal answers."""
GIB = 1024**3

P0, P1, D0 = Seat("p0", "prefill"), Seat("p1", "prefill"), Seat("d0", "decode")
PLAIN = Seat("a0", "aggregated", connector=False)

Experiment = Callable[[argparse.Namespace, Record], None]


def pair(options: argparse.Namespace, record: Record) -> None:
    """Answers, handoffs and where requests go, by a good and by a slow path; many clients at once."""
    site = _site(options, "attention", 12 * GIB, SAME_IN_ANY_BATCH, ATTENTION_FLAGS)
    slow = Seat("d1", "decode", tls=options.tls)
    with running((P0, P1, D0, slow, PLAIN), site) as workers:
        _one_pair(site, workers, "d0", options.sizes, options.each, record)
        _one_pair(site, workers, "d1", options.sizes[:3:2], 1, record)
        p0, p1, d0 = (workers[name] for name in ("p0", "p1", "d0"))
        for seed, policy in ((700_000, "kv"), (800_000, "round_robin")):
            members: list[Member] = [(p0, "prefill"), (p1, "prefill"), (d0, "decode")]
            with gateway(f"crowd-{policy}", members, site, LABELS, policy=policy) as front:
                crowd(front, policy, seed, workers, record)


def _one_pair(
    site: Site, workers: dict[str, Worker], decoder: str, sizes: Sequence[int], each: int, record: Record
) -> None:
    p0, decode, a0 = (workers[name] for name in ("p0", decoder, "a0"))
    seed = int(decoder[1:]) * 100_000_000
    two: list[Member] = [(p0, "prefill"), (decode, "decode")]
    one: list[Member] = [(a0, "aggregated")]
    with (
        gateway(f"pair-{decoder}", two, site, LABELS) as front,
        gateway(f"one-{decoder}", one, site) as single,
    ):
        compare_answers(front, workers, sizes, each, record, decoder, seed)
        measure_handoffs(front, single, workers, sizes, each, record, decoder, seed)
        time.sleep(LEARNING_SECONDS)
        pairs = front.workers().get("pairs")
        record("link", decode_worker=decoder, pairs=pairs, **link_check(front, decode))
    with gateway(f"mixed-{decoder}", [*two, *one], site, LABELS) as front:
        where_requests_go(front, decode, seed, record)
        _doctor(front, record)


def hybrid(options: argparse.Namespace, record: Record) -> None:
    """Hits of a plain worker, of one with the connector, and of a pair; answers of the pair."""
    site = _site(options, "hybrid", 8 * GIB, HYBRID_ENV, HYBRID_FLAGS)
    if site.path is not None:
        _allow_dense_layers(Path(site.path))
    with running((P0, D0, PLAIN), site) as workers:
        p0, d0, a0 = (workers[name] for name in ("p0", "d0", "a0"))
        with gateway("hybrid-pair", [(p0, "prefill"), (d0, "decode")], site, LABELS) as front:
            compare_answers(front, workers, HYBRID_SIZES, options.each, record, "d0", 0)
            hits(front, "pair", p0, 910_000, record)
        for name, worker, seed in (("plain", a0, 920_000), ("connector", p0, 930_000)):
            with gateway(f"hybrid-{name}", [(worker, "aggregated")], site) as front:
                hits(front, name, worker, seed, record)


def fabric(options: argparse.Namespace, record: Record) -> None:
    """The probe in GPU and host memory, beside torch; without GPUs in host memory alone."""
    logs = options.out / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    ways = [("dram", "")]
    if not options.simulated:
        torch_copies(options.python, options.gpus, record)
        ways += [("vram", tls) for tls in SETTINGS]
    for memory, tls in ways:
        probe(memory, tls, options.gpus, options.site, logs, record)


EXPERIMENTS: dict[str, Experiment] = {"fabric": fabric, "pair": pair, "hybrid": hybrid}


def _doctor(front: Front, record: Record) -> None:
    """As text for people, and its findings and pairs."""
    command = [sys.executable, "-m", "gateway.cli", "doctor", "--gateway", front.admin]
    text, told = (
        subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
        for more in ((), ("--json",))
    )
    print(text.stdout, text.stderr, flush=True)
    found = json.loads(told.stdout) if told.stdout else {}
    record("doctor", status=text.returncode, findings=found.get("findings"), pairs=found.get("pairs"))


def _site(
    options: argparse.Namespace,
    shape: str,
    kv_bytes: int,
    env: dict[str, str],
    flags: Sequence[str] = (),
) -> Site:
    """Makes the model where it is not there."""
    model = options.models / shape
    site = Site(
        python=options.python,
        path=options.site,
        model=model,
        gpus=options.gpus,
        logs=options.out / "logs",
        kv_bytes=kv_bytes,
        flags=flags,
        env=env,
        simulated=options.simulated,
    )
    if options.simulated:
        write_model(model, shape)
    elif not (model / "vocabulary").exists():
        command = [options.python, "-m", "loadtests.gpu.weights", str(model), shape]
        subprocess.run(command, cwd=ROOT, check=True)
    return site


def _allow_dense_layers(site: Path) -> None:
    """vLLM wants an expert in some layer of this kind of model; ours has none."""
    source = site / "vllm/model_executor/models/qwen3_next.py"
    checked = 'raise RuntimeError("No Qwen3Next layer found in the model.layers.")'
    source.write_text(source.read_text().replace(checked, "return"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="loadtests.gpu", description=__doc__)
    parser.add_argument("experiments", nargs="+", choices=EXPERIMENTS, metavar="EXPERIMENT")
    parser.add_argument("--python", default=sys.executable, help="interpreter of vLLM (default: this one)")
    parser.add_argument("--site", help="folder with vLLM's packages, if the interpreter lacks them")
    parser.add_argument(
        "--models", type=Path, default=Path("/tmp/kvgateway-gpu"), help="where models are made"
    )
    parser.add_argument(
        "--gpus", type=_numbers, default=[0, 1], help="two GPUs, as 0,1; 0 for one that all share"
    )
    parser.add_argument("--tls", default="^cuda_ipc", help="UCX_TLS of the slow decode worker in `pair`")
    parser.add_argument("--sizes", type=_numbers, default=list(SIZES), help="prompt tokens")
    parser.add_argument("--each", type=int, default=5, help="prompts of each size")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="results and logs")
    parser.add_argument("--simulated", action="store_true", help="simulated workers: tries the scripts")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    record, failed = Record(options.out / "results.jsonl"), 0
    for name in options.experiments:
        try:
            EXPERIMENTS[name](options, record)
        except Exception:  # the next one may work
            traceback.print_exc()
            failed = 1
    return failed


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
