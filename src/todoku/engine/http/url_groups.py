"""URL groups: a request to a group becomes one message for each of its endpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from todoku.core.errors import InvalidMessage
from todoku.core.sealed import MasterKeys
from todoku.engine.encryption.secret_headers import NO_MASTERS, open_default_headers, seal_default_headers
from todoku.engine.http.names import check_name
from todoku.engine.outbox import new_id
from todoku.store.audit import Signed
from todoku.store.store import Store
from todoku.store.url_groups import EndpointRow, GroupRow, NewEndpoint

Group = GroupRow
Endpoint = EndpointRow


class EndpointName(msgspec.Struct, frozen=True):
    """Names an endpoint by its URL, its name, or both. The URL is already checked (core.address_guard)."""

    url: str | None = None
    name: str | None = None


def get(store: Store, name: str) -> Group | None:
    """Returns a group; None if it does not exist."""
    return store.url_groups.get(check_name(name, "URL group"))


def list_groups(store: Store) -> tuple[Group, ...]:
    """Returns all groups by name."""
    return store.url_groups.all()


def put(store: Store, name: str, endpoints: Sequence[EndpointName], signed: Signed) -> None:
    """Creates a group or adds endpoints to it. An existing endpoint gets the given name and is enabled."""
    if not endpoints:
        raise InvalidMessage("endpoints cannot be empty", hint='{"endpoints": [{"url": "https://…"}]}')
    if any(one.url is None for one in endpoints):
        raise InvalidMessage("an endpoint has no url", hint='{"url": "https://…", "name": "…"}')
    # Endpoints are listed and sent to in the order of their ids; ids of one moment are unordered, so they are sorted.
    pairs = zip(sorted(new_id() for _ in endpoints), endpoints, strict=True)
    new = {one.url: NewEndpoint(id, one.url, _name(one)) for id, one in pairs if one.url is not None}
    store.url_groups.put_endpoints(check_name(name, "URL group"), list(new.values()), None, signed)


def set_headers(
    store: Store, name: str, headers: Mapping[str, str], signed: Signed, masters: MasterKeys = NO_MASTERS
) -> None:
    """Sets the default headers of a group's messages. The names are already checked (core.http_headers).

    Sensitive headers (by name) are stored encrypted if there is a master key.
    """
    group = check_name(name, "URL group")
    store.url_groups.put_endpoints(group, (), seal_default_headers(group, headers, masters), signed)


def open_group(group: Group, masters: MasterKeys) -> Group:
    """Returns a group with its default headers decrypted. CannotOpen."""
    return msgspec.structs.replace(group, headers=open_default_headers(group.name, group.headers, masters))


def remove(store: Store, name: str, endpoints: Sequence[EndpointName], signed: Signed) -> int:
    """Removes endpoints from a group, and the group with its last one. Returns how many were removed."""
    urls = [one.url for one in endpoints if one.url is not None]
    names = [one.name for one in endpoints if one.url is None and one.name is not None]
    if not urls and not names:
        raise InvalidMessage("endpoints cannot be empty", hint='{"endpoints": [{"url": "…"}, {"name": "…"}]}')
    return store.url_groups.remove_endpoints(check_name(name, "URL group"), urls, names, signed)


def delete(store: Store, name: str, signed: Signed) -> bool:
    """Removes a group; messages already published to it are delivered. Returns False if it does not exist."""
    return store.url_groups.remove(check_name(name, "URL group"), signed)


def enable(store: Store, url: str, signed: Signed, *, group: str | None = None) -> bool:
    """Enables an endpoint, from the next publish on. Returns False if none was disabled."""
    return store.url_groups.set_endpoint(url, signed, group=group, enabled=True)


def disable(store: Store, url: str, reason: str, signed: Signed, *, group: str | None = None) -> bool:
    """Disables an endpoint: messages published to its group become dead letters there.

    `group` None: in every group. Returns False if none was enabled.
    """
    return store.url_groups.set_endpoint(url, signed, group=group, enabled=False, reason=reason)


def _name(endpoint: EndpointName) -> str | None:
    return None if endpoint.name is None else check_name(endpoint.name, "name of an endpoint")
