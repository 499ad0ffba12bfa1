"""Which party an address belongs to: what limits by address count."""

from __future__ import annotations

import ipaddress

UNKNOWN = "unknown"


def find_party(host: str | None) -> str:
    """The party that holds an address, as one word.

    An IPv4 address stands for itself, also where IPv6 carries it (``::ffff:192.0.2.1``). Of IPv6,
    whoever has one address usually has all 2⁶⁴ of its network, so the /64 is counted. TLS ends at
    the api, so this is the address of the connection itself: no header is believed. Behind one NAT,
    or a load balancer that passes TLS through, many hospitals are one party.

    Args:
        host: as a socket gives it, with or without a zone; what is no address is ``"unknown"``.
    """
    try:
        address = ipaddress.ip_address((host or "").partition("%")[0])
    except ValueError:
        return UNKNOWN
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
