"""URL groups: what is published to one goes to each of its endpoints, as a message of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.master_keys import MasterKeys
from todoku.engine.encryption.schedule_secrets import NO_MASTERS, open_default_headers, seal_default_headers
from todoku.engine.http.names import check_name
from todoku.engine.outbox import new_id
from todoku.store.audit import Signed
from todoku.store.store import Store
from todoku.store.url_groups import EndpointRow, GroupRow, NewEndpoint

Group = GroupRow
Endpoint = EndpointRow


class EndpointName(msgspec.Struct, frozen=True):
    """An endpoint as people name it: by its URL, by its name, or both. The URL was checked (core.ssrf)."""

    url: str | None = None
    name: str | None = None


def get(store: Store, name: str) -> Group | None:
    """A group; None: there is none."""
    return store.url_groups.get(check_name(name, "URL group"))


def list_groups(store: Store) -> tuple[Group, ...]:
    """All of them, by name."""
    return store.url_groups.all()


def put(store: Store, name: str, endpoints: Sequence[EndpointName], signed: Signed) -> None:
    """Make a group, or add to it. An endpoint that is there gets the name that is given, and is enabled again."""
    if not endpoints:
        raise InvalidMessage("endpoints cannot be empty", hint='{"endpoints": [{"url": "https://…"}]}')
    if any(one.url is None for one in endpoints):
        raise InvalidMessage("an endpoint has no url", hint='{"url": "https://…", "name": "…"}')
    # In the order of their ids they are shown, and sent to: ids of one moment are in none by themselves.
    pairs = zip(sorted(new_id() for _ in endpoints), endpoints, strict=True)
    new = {one.url: NewEndpoint(id, one.url, _name(one)) for id, one in pairs if one.url is not None}
    store.url_groups.put_endpoints(check_name(name, "URL group"), list(new.values()), None, signed)


def set_headers(
    store: Store, name: str, headers: Mapping[str, str], signed: Signed, masters: MasterKeys = NO_MASTERS
) -> None:
    """Say which headers its messages have unless they have their own. The names were checked (core.httpheaders).

    Those that are secrets by their name are stored encrypted, if there is a master key.
    """
    group = check_name(name, "URL group")
    store.url_groups.put_endpoints(group, (), seal_default_headers(group, headers, masters), signed)


def open_group(group: Group, masters: MasterKeys) -> Group:
    """A group with its default headers as its messages get them. CannotOpen."""
    return msgspec.structs.replace(group, headers=open_default_headers(group.name, group.headers, masters))


def remove(store: Store, name: str, endpoints: Sequence[EndpointName], signed: Signed) -> int:
    """Take endpoints out of a group; it goes with its last one. Returns how many there were."""
    urls = [one.url for one in endpoints if one.url is not None]
    names = [one.name for one in endpoints if one.url is None and one.name is not None]
    if not urls and not names:
        raise InvalidMessage("endpoints cannot be empty", hint='{"endpoints": [{"url": "…"}, {"name": "…"}]}')
    return store.url_groups.remove_endpoints(check_name(name, "URL group"), urls, names, signed)


def delete(store: Store, name: str, signed: Signed) -> bool:
    """Remove a group; what was published to it is delivered. False: there was none, which is no error."""
    return store.url_groups.remove(check_name(name, "URL group"), signed)


def enable(store: Store, url: str, signed: Signed, *, group: str | None = None) -> bool:
    """Send to an endpoint again, from the next publish on. False: there is none that is disabled."""
    return store.url_groups.set_endpoint(url, signed, group=group, enabled=True)


def disable(store: Store, url: str, reason: str, signed: Signed, *, group: str | None = None) -> bool:
    """Send nothing more to an endpoint: what is published to its group becomes a dead letter there.

    `group` None: in whatever group it is. False: there is none that is enabled.
    """
    return store.url_groups.set_endpoint(url, signed, group=group, enabled=False, reason=reason)


def _name(endpoint: EndpointName) -> str | None:
    return None if endpoint.name is None else check_name(endpoint.name, "name of an endpoint")
