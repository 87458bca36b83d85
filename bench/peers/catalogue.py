"""Every peer of `make bench`."""

from __future__ import annotations

from bench.peers import catalogue_others, catalogue_own, catalogue_python
from bench.peers.peer import Peer

PEERS: tuple[Peer, ...] = (*catalogue_own.PEERS, *catalogue_python.PEERS, *catalogue_others.PEERS)


def chosen(names: str | None) -> tuple[Peer, ...]:
    """Those that `--only` names: a name, or the beginning of several."""
    if names is None:
        return PEERS
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in wanted if not any(peer.name.startswith(name) for peer in PEERS)]
    if unknown:
        there = ", ".join(peer.name for peer in PEERS)
        raise ValueError(f"--only {', '.join(unknown)}: there is no such peer; there is {there}")
    return tuple(peer for peer in PEERS if any(peer.name.startswith(name) for name in wanted))
