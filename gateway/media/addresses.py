"""Which addresses the gateway may fetch from on behalf of a client: the public internet alone."""

from __future__ import annotations

import ipaddress

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48")))
_CLOUD = frozenset(map(ipaddress.ip_address, ("168.63.129.16", "192.0.0.192")))
"""Metadata services on addresses that look public."""


def is_public(address: Address) -> bool:
    """False for private, loopback, link-local, shared, multicast, reserved and metadata addresses.

    An IPv6 address that carries an IPv4 address is judged by that one too.
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = _carried(address)
        if inner is not None:
            return is_public(inner)
        if address.scope_id is not None:
            return False
    return (
        address.is_global and not address.is_multicast and not address.is_reserved and address not in _CLOUD
    )


def _carried(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    if any(address in network for network in _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if int(address) >> 32 == 0 and int(address) > 1:  # IPv4-compatible, long out of use
        return ipaddress.IPv4Address(int(address))
    return None
