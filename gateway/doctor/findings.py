"""What is wrong with a fleet, and what to change. Pure: examinations in, findings out."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from gateway.config import LinkClass
from gateway.doctor.examine import Examined
from gateway.handoff.links import HOST, PRIORS, is_slow, link_class
from gateway.handoff.pairs import Traits, obstacle

Severity = Literal["error", "warning", "note"]
_Make = Callable[[str, Severity, str, str], "Finding"]

FIRST_SAFE_VERSION = (0, 32)
"""Of vLLM, for models with recurrent state: before it, a failed transfer was answered with another text."""
LEASE_MARGIN = 0.9


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to change, or to know."""

    code: str
    severity: Severity
    worker: str
    """Or both names of a pair."""
    message: str
    fix: str


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """What was examined, and what the gateway is configured with."""

    workers: Sequence[Examined]
    lease_seconds: float
    has_state: Callable[[str], bool] = lambda _: False
    """Whether the model of a pool has recurrent layers."""
    required_link: Mapping[str, LinkClass | None] = {}
    """By pool."""


class PairReport(msgspec.Struct, frozen=True, kw_only=True):
    """One prefill worker with one decode worker."""

    prefill: str
    decode: str
    link: LinkClass
    expected_gigabytes_per_second: float
    measured_gigabytes_per_second: float | None
    """Of all that the decode worker has read since its start; None when that was nothing."""
    obstacle: str | None = None


def diagnose(fleet: Fleet) -> list[Finding]:
    """All findings, worst first."""
    found = [finding for worker in fleet.workers for finding in _worker(worker, fleet)]
    found += [*_side_channels(fleet), *_pairs(fleet)]
    order = {"error": 0, "warning": 1, "note": 2}
    return sorted(found, key=lambda finding: order[finding.severity])


def pairs(fleet: Fleet) -> list[PairReport]:
    """Every pair of a prefill and a decode worker of one pool."""
    reports = []
    for prefill, decode in _couples(fleet):
        kind = link_class(prefill.settings.labels, decode.settings.labels)
        reports.append(
            PairReport(
                prefill=prefill.name,
                decode=decode.name,
                link=kind,
                expected_gigabytes_per_second=PRIORS[kind].bandwidth / 1e9,
                measured_gigabytes_per_second=_measured(decode),
                obstacle=obstacle(_traits(prefill), _traits(decode), fleet.required_link.get(_pool(decode))),
            )
        )
    return reports


# One worker


def _worker(seen: Examined, fleet: Fleet) -> Iterator[Finding]:
    def finding(code: str, severity: Severity, message: str, fix: str) -> Finding:
        return Finding(code=code, severity=severity, worker=seen.name, message=message, fix=fix)

    profile = seen.profile
    if seen.unreachable is not None or profile is None:
        yield finding(
            "unreachable",
            "error",
            f"it cannot be used: {seen.unreachable}",
            "start it, or correct its `url` and `role`",
        )
        return
    if profile.endpoint == "openai" and seen.settings.engine != "openai":
        yield finding(
            "text_only",
            "warning",
            "it takes no token ids: requests are passed through, without KV routing, parsing or handoff",
            "start vLLM with --enable-scale-out, or use a version with token ids on /v1/completions",
        )
    if seen.request_error is not None:
        yield finding(
            "request_failed", "error", f"a small request failed: {seen.request_error}", "see the worker's log"
        )
    yield from _events(seen, finding)
    if _is_old(seen) and fleet.has_state(_pool(seen)) and seen.role != "aggregated":
        yield finding(
            "old_version",
            "error",
            f"vLLM {profile.version} answers with status 200 and a wrong text when a KV transfer of a model "
            "with recurrent layers fails",
            "use vLLM 0.32 or later for prefill and decode",
        )
    if seen.role == "decode" and profile.max_num_seqs is None:
        yield finding(
            "max_num_seqs",
            "warning",
            "how many sequences it runs at once is not known: KV handles may expire in its queue",
            "set `max_num_seqs` of the worker to its --max-num-seqs",
        )
    yield from _lease(seen, fleet, finding)


def _events(seen: Examined, finding: _Make) -> Iterator[Finding]:
    profile = seen.profile
    assert profile is not None
    if profile.endpoint == "openai":
        return
    if not profile.kv_sources:
        if seen.role == "decode":
            yield finding(
                "decode_without_events",
                "note",
                "it publishes no KV events and is chosen by load alone: right where prefill is apart",
                "nothing, unless it also serves prompts by itself",
            )
        else:
            yield finding(
                "no_events",
                "error",
                "it publishes no KV events: nothing is known of what it holds",
                "start it with --kv-events-config (publisher zmq), or set `kv_events` of the worker",
            )
    for each in seen.events:
        if not each.connected:
            yield finding(
                "events_unreachable",
                "error",
                f"nobody publishes at {each.endpoint}",
                "open the port, or set `kv_events` to an address that can be reached from here",
            )
        elif each.arrived is False and seen.role != "decode":
            yield finding(
                "events_silent",
                "error",
                f"blocks that it stored were not announced at {each.endpoint}",
                "check the topic and that nothing else publishes there; see the worker's log",
            )
        if each.replay is None:
            yield finding(
                "no_replay",
                "warning",
                "it has no replay endpoint: one lost message makes its picture approximate",
                "add replay_endpoint to its --kv-events-config, or set `kv_replay`",
            )
        elif each.connected and each.replayed is False:
            yield finding(
                "replay_unreachable",
                "error",
                f"nothing is replayed at {each.replay}: {each.reason or 'no answer'}",
                "open the port, or correct `kv_replay`",
            )
        elif each.connected and each.state != "exact":
            yield finding(
                "events_not_exact", "warning", f"its events are {each.state}: {each.reason}", "see above"
            )
        said, announced = profile.block_size, each.block_sizes.get(0)
        # An engine may make its blocks larger than asked for, for its state layers.
        if said is not None and announced is not None and announced % said:
            yield finding(
                "wrong_block_size",
                "error",
                f"it says that blocks have {said} tokens and announces blocks of {announced}",
                "find out what else publishes at its event address",
            )


def _lease(seen: Examined, fleet: Fleet, finding: _Make) -> Iterator[Finding]:
    if seen.lease_seconds is not None and seen.lease_seconds < LEASE_MARGIN * fleet.lease_seconds:
        yield finding(
            "lease_clock",
            "error",
            f"it gave up a prefill's blocks after {seen.lease_seconds:.1f} s, and the gateway counts on "
            f"{fleet.lease_seconds:g} s: a handle may be read when its blocks hold another prompt",
            f"set `kv_lease_seconds` to {max(seen.lease_seconds, 0.1):.1f} or less, or raise the worker's "
            "kv_lease_duration",
        )
    transfers = seen.vitals.transfers if seen.vitals is not None else None
    if transfers is not None and transfers.late:
        yield finding(
            "late_reads",
            "error",
            f"{transfers.late:.0f} reads of its blocks ended after their lease: such answers may be wrong",
            "lower `kv_lease_seconds`, give decode workers fewer sequences, find the slow path",
        )
    elif transfers is not None and transfers.expired:
        yield finding(
            "leases_expired",
            "warning",
            f"{transfers.expired:.0f} prefills were never read: their blocks were pinned for a whole lease",
            "see why decode did not take them: kvgateway_engine_failures, the gateway's log",
        )


# Several workers


def _side_channels(fleet: Fleet) -> Iterator[Finding]:
    owners: dict[str, list[Examined]] = defaultdict(list)
    for seen in fleet.workers:
        if seen.profile is None or seen.role == "aggregated":
            continue
        address = seen.side_channel
        if address is None:
            continue
        owners[address].append(seen)

        def finding(code: str, message: str, fix: str, worker: str = seen.name) -> Finding:
            return Finding(code=code, severity="error", worker=worker, message=message, fix=fix)

        others = {_host(other) for other in fleet.workers if other.role == "decode"}
        if _is_loopback(address.rpartition(":")[0]) and others - {_host(seen)}:
            yield finding(
                "localhost_side_channel",
                f"its side channel is {address}: decode workers elsewhere look for it on their own machine",
                "set VLLM_NIXL_SIDE_CHANNEL_HOST to an address of the worker that others can reach",
            )
        if seen.handshake_error is not None:
            yield finding(
                "no_handshake",
                f"its side channel does not answer as one: {seen.handshake_error}",
                "open the port from here and from the decode workers; one port for each rank",
            )
        theirs = seen.shaken.engine_id if seen.shaken is not None else None
        if None not in (theirs, seen.answer_engine_id) and theirs != seen.answer_engine_id:
            yield finding(
                "port_clash",
                f"another engine answers at its side channel {address}",
                "give each worker of a machine a VLLM_NIXL_SIDE_CHANNEL_PORT of its own",
            )
    for address, several in owners.items():
        if len(several) > 1:
            names = ", ".join(sorted(seen.name for seen in several))
            yield Finding(
                code="port_clash",
                severity="error",
                worker=names,
                message=f"they have one side channel, {address}",
                fix="give each worker of a machine a VLLM_NIXL_SIDE_CHANNEL_PORT of its own",
            )


def _pairs(fleet: Fleet) -> Iterator[Finding]:
    for prefill, decode in _couples(fleet):
        both = f"{prefill.name}, {decode.name}"
        reason = obstacle(_traits(prefill), _traits(decode), fleet.required_link.get(_pool(decode)))
        if reason is not None:
            code = "compatibility" if reason.startswith("compatibility hash") else "no_pair"
            yield Finding(
                code=code,
                severity="error",
                worker=both,
                message=f"they are never made a pair: {reason}",
                fix=_PAIR_FIXES.get(reason.partition(":")[0], "start both with the same settings"),
            )
        transfers = decode.vitals.transfers if decode.vitals is not None else None
        kind = link_class(prefill.settings.labels, decode.settings.labels)
        if transfers is not None and is_slow(kind, transfers.bytes, transfers.count, transfers.seconds):
            yield Finding(
                code="slow_path",
                severity="error",
                worker=both,
                message=f"transfers reach {transfers.bytes / transfers.seconds / 1e9:.2f} GB/s; a link of "
                f"class {kind} gives about {PRIORS[kind].bandwidth / 1e9:g}",
                fix=_PATH_FIXES[kind],
            )


_PAIR_FIXES = {
    "block size": "start both with the same --block-size",
    "compatibility hash": "same vLLM version, attention backend, KV dtype and speculative decoding on both",
    "link": "put both into one NVLink clique and ComputeDomain, or lower `required_link`",
    "revision": "serve one revision on both, or make two pools",
}
_PATH_FIXES: Mapping[LinkClass, str] = {
    "mnnvl": "one ComputeDomain for both, --enable-cumem-allocator, and a UCX_TLS that allows cuda_ipc",
    "nvlink": "UCX_TLS must allow cuda_ipc; no expandable_segments without --enable-cumem-allocator",
    "rdma": "give the pods network cards and IPC_LOCK; UCX_TLS must allow rc",
    "shm": "one PID namespace and user, SYS_PTRACE across containers",
    "tcp": "another network",
}


def _couples(fleet: Fleet) -> Iterator[tuple[Examined, Examined]]:
    ready = [seen for seen in fleet.workers if seen.profile is not None]
    for prefill in (seen for seen in ready if seen.role == "prefill"):
        for decode in (seen for seen in ready if seen.role == "decode"):
            if _pool(prefill) == _pool(decode):
                yield prefill, decode


def _traits(seen: Examined) -> Traits:
    profile = seen.profile
    assert profile is not None
    return Traits(
        engine=profile.engine,
        version=profile.version,
        block_size=profile.block_size,
        layout=profile.layout,
        speculation=profile.speculation,
        compatibility=seen.shaken.compatibility if seen.shaken is not None else None,
        labels=seen.settings.labels,
    )


def _measured(decode: Examined) -> float | None:
    transfers = decode.vitals.transfers if decode.vitals is not None else None
    if transfers is None or not transfers.seconds:
        return None
    return transfers.bytes / transfers.seconds / 1e9


def _is_old(seen: Examined) -> bool:
    profile = seen.profile
    found = re.match(r"v?(\d+)\.(\d+)", profile.version or "") if profile is not None else None
    if profile is None or profile.engine != "vllm" or found is None:
        return False
    return (int(found[1]), int(found[2])) < FIRST_SAFE_VERSION


def _pool(seen: Examined) -> str:
    return seen.settings.pool


def _host(seen: Examined) -> str:
    return seen.settings.labels.get(HOST) or urlsplit(seen.settings.url).hostname or ""


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host in ("localhost", "")
