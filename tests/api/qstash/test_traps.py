"""What proxies, scripts and slips make of requests: nothing is published, cancelled or deleted by mistake."""

from __future__ import annotations

import httpx
import pytest

from tests.api.qstash.conftest import TOKEN, Server
from tests.daemon.running import until
from tests.support.serving import PLAIN

LATER = {"Upstash-Delay": "1h"}


def published(raw: httpx.Client, server: Server, path: str, **headers: str) -> str:
    """The id of a message that waits for an hour."""
    named = {f"Upstash-{name.replace('_', '-')}": value for name, value in headers.items()}
    answer = raw.post(f"/v2/publish/{server.to(path)}", headers=LATER | named)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["messageId"])


def waits(raw: httpx.Client, id: str) -> bool:
    """Whether it has not been cancelled."""
    events = raw.get("/v2/events", params={"messageId": id, "state": "CANCELED"}).json()["events"]
    return not events


def until_there(server: Server, path: str) -> str:
    """The whole path of what came to it."""
    return server.receiver.one(path).path


# --------------------------------------------------------------------------------------- the destination


@pytest.mark.parametrize(
    ("path", "arrives"),
    [
        ("/{name}/a//b?x=1&y", "/{name}/a//b?x=1&y"),
        ("/{name}/q?x=1&qstash_token=secret&upstash-retries=0&y=2", "/{name}/q?x=1&y=2"),
        ("/{name}/%41%20b", "/{name}/%41%20b"),
    ],
)
def test_the_destination_arrives_as_it_stands_in_the_path(
    raw: httpx.Client, server: Server, name: str, path: str, arrives: str
) -> None:
    """webhooks 2.5, 1: raw, with its slashes and its query, without what was meant for us."""
    sent, expected = path.format(name=name), arrives.format(name=name)
    assert raw.post(f"/v2/publish/{server.to(sent)}").status_code == 200
    assert until_there(server, expected.split("?")[0]) == expected


def test_merged_slashes_and_escapes_are_understood(raw: httpx.Client, server: Server, name: str) -> None:
    merged = server.to(f"/{name}/merged").replace("http://", "http:/")
    escaped = server.to(f"/{name}/escaped?a=1").replace(":", "%3A").replace("/", "%2F").replace("?", "%3F")
    assert raw.post(f"/v2/publish/{merged}").status_code == 200
    assert raw.post(f"/v2/enqueue/{name}/{escaped}&b=2").status_code == 200
    assert until_there(server, f"/{name}/merged")
    assert until_there(server, f"/{name}/escaped") == f"/{name}/escaped?a=1&b=2"


def test_a_token_and_options_in_the_query_are_enough(raw: httpx.Client, server: Server, name: str) -> None:
    """A webhook that can set no headers publishes all the same."""
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60, verify=PLAIN) as anybody:
        query = f"qstash_token={TOKEN}&upstash-delay=1h&upstash-label={name}&own=1"
        answer = anybody.post(f"/v2/publish/{server.to(f'/{name}')}?{query}", content=b"hi")
    assert answer.status_code == 200, answer.text
    message = raw.get(f"/v2/messages/{answer.json()['messageId']}").json()
    assert (message["url"], message["label"], message["body"]) == (server.to(f"/{name}?own=1"), name, "hi")
    assert TOKEN not in str(message)


@pytest.mark.parametrize(
    "destination", ["", "ftp://example.com", "example.com/x", "api/llm", "no-such-group", "https://"]
)
def test_a_bad_destination_is_named(raw: httpx.Client, destination: str) -> None:
    answer = raw.post(f"/v2/publish/{destination}")
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert "destination" in answer.json()["error"] or "no-such-group" in answer.json()["error"]


# ------------------------------------------------------------------------------------ cancelling everything


def test_an_empty_id_cancels_nothing(raw: httpx.Client, server: Server, path: str) -> None:
    """webhooks 2.5, 2."""
    id = published(raw, server, path)
    for attempt in ("/v2/messages/", "/v2/messages//", "/v2/messages/%20"):
        answer = raw.delete(attempt, follow_redirects=True)
        assert answer.status_code == 404, attempt
    assert waits(raw, id)


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_a_lost_body_cancels_nothing(raw: httpx.Client, server: Server, path: str, kind: str) -> None:
    """webhooks 2.5, 2: the Python client's cancel_many through a proxy that drops bodies of DELETE."""
    id = published(raw, server, path)
    for of in ("/v2/messages", "/v2/dlq"):
        answer = raw.request("DELETE", of, headers={"Content-Type": kind})
        assert answer.status_code == 400
        assert "declared but empty" in answer.json()["error"]
    assert waits(raw, id)


@pytest.mark.parametrize(
    ("query", "body"),
    [
        ("mesageIds=1", b""), ("label=", b""), ("all=false", b""), ("dlqIds=1-0", b""), ("responseStatus=404", b""),
        ("state=CREATED", b""), ("fromDate=yesterday", b""), ("messageId=%FF&messageId=", b""),
        ("", b"{}"), ("", b"[]"), ("", b"null"), ("", b'{"messageIds": null}'), ("", b'{"messageIds": "all"}'),
        ("", b'{"messageIds": [1]}'), ("", b'{"messageids": []}'), ("", b"not json"),
        ("label=x", b'{"messageIds": []}'),
    ],
)  # fmt: skip
def test_a_slip_in_what_is_meant_cancels_nothing(
    raw: httpx.Client, server: Server, path: str, query: str, body: bytes
) -> None:
    id = published(raw, server, path)
    headers = {"Content-Type": "application/json"} if body else {}
    answer = raw.request("DELETE", f"/v2/messages?{query}", content=body, headers=headers)
    assert answer.status_code in (400, 422), answer.text
    assert answer.json()["error"]
    assert waits(raw, id)


def test_ids_that_are_none_cancel_nothing(raw: httpx.Client, server: Server, path: str) -> None:
    id = published(raw, server, path)
    for request in (
        {"params": {"messageIds": ["x", "y"]}},
        {"json": {"messageIds": ["x"]}},
        {"json": {"messageIds": []}},
    ):
        answer = raw.request("DELETE", "/v2/messages", **request)  # type: ignore[arg-type]
        assert (answer.status_code, answer.json()) == (200, {"cancelled": 0})
    assert waits(raw, id)
    filtered = {"label": "no-such-label", "count": 100}
    assert raw.request("DELETE", "/v2/messages", params=filtered).json() == {"cancelled": 0}
    assert waits(raw, id)
    assert raw.request("DELETE", "/v2/messages", params={"messageIds": ["x", id]}).json() == {"cancelled": 1}
    assert not waits(raw, id)


def test_dead_letters_are_deleted_and_retried_only_if_something_says_which(
    raw: httpx.Client, server: Server, name: str
) -> None:
    raw.post(f"/v2/publish/{server.to('/status/404')}", headers={"Upstash-Retries": "0", "Upstash-Label": name})

    def letters() -> list[dict[str, object]]:
        return list(raw.get("/v2/dlq", params={"label": name}).json()["messages"])

    until(letters, "a dead letter")
    for method, path in (("DELETE", "/v2/dlq"), ("POST", "/v2/dlq/retry"), ("DELETE", "/v2/dlq/")):
        assert raw.request(method, path, follow_redirects=True).status_code in (404, 422)
    assert raw.post("/v2/dlq/retry", params={"dlqIds": "nonsense"}).json() == {"cursor": "", "responses": []}
    assert raw.post("/v2/dlq/retry/1-0-0").status_code == 404
    (letter,) = letters()
    again = raw.post(f"/v2/dlq/retry/{letter['dlqId']}")
    assert (again.status_code, again.json()) == (201, {"messageId": letter["messageId"]})
    until(lambda: [each for each in letters() if each["dlqId"] != letter["dlqId"]], "dead again, under another id")
    assert raw.get(f"/v2/dlq/{letter['dlqId']}").status_code == 404
    assert raw.request("DELETE", "/v2/dlq", params={"label": name}).json() == {"deleted": 1}


# ----------------------------------------------------------------------------------------------- answers


def test_a_repetition_is_202_and_a_group_is_a_list(raw: httpx.Client, server: Server, name: str) -> None:
    url, headers = f"/v2/publish/{server.to(f'/{name}')}", LATER | {"Upstash-Deduplication-Id": name}
    first, second = raw.post(url, headers=headers), raw.post(url, headers=headers)
    assert (first.status_code, second.status_code) == (200, 202)
    assert first.json() == {"messageId": first.json()["messageId"], "url": server.to(f"/{name}")}
    assert second.json() == first.json() | {"deduplicated": True}


def test_events_are_there_under_both_names_and_paths(raw: httpx.Client, server: Server, path: str) -> None:
    id = published(raw, server, path, Retry_Delay="1000")
    found = [raw.get(of, params={"messageIds": [id, "x"]}).json() for of in ("/v2/events", "/v2/logs")]
    assert found[0] == found[1]
    assert found[0]["events"] == found[0]["logs"]
    assert "cursor" not in found[0]
    (event,) = found[0]["events"]
    assert (event["state"], event["retryDelayExpr"], event["retryDelayExpression"]) == ("CREATED", "1000", "1000")


def test_pause_and_resume_of_a_schedule_by_post_too(raw: httpx.Client, server: Server, name: str) -> None:
    headers = {"Upstash-Cron": "0 0 1 1 *", "Upstash-Schedule-Id": name}
    assert raw.post(f"/v2/schedules/{server.to('/x')}", headers=headers).json() == {"scheduleId": name}
    for method in ("POST", "PATCH"):
        assert raw.request(method, f"/v2/schedules/{name}/pause").status_code == 200
        assert raw.get(f"/v2/schedules/{name}").json()["isPaused"] is True
        assert raw.request(method, f"/v2/schedules/{name}/resume").status_code == 200
    assert raw.delete(f"/v2/schedules/{name}").status_code == 200
    assert raw.delete(f"/v2/schedules/{name}").status_code == 404
    assert raw.patch(f"/v2/schedules/{name}/pause").status_code == 404


def test_default_headers_of_a_group_are_below_the_messages_own(raw: httpx.Client, server: Server, name: str) -> None:
    raw.post(f"/v2/topics/{name}/endpoints", json={"endpoints": [{"url": server.to(f"/{name}")}]})
    assert raw.patch(f"/v2/topics/{name}", json={"headers": {"x-one": "group", "x-two": "group"}}).status_code == 200
    assert raw.patch(f"/v2/topics/{name}", json={"headers": {"Host": "elsewhere"}}).status_code == 422
    raw.post(f"/v2/publish/{name}", headers={"Upstash-Forward-X-One": "message"})
    came = server.receiver.one(f"/{name}").headers
    assert (came["x-one"], came["x-two"]) == ("message", "group")
    assert raw.delete(f"/v2/topics/{name}").status_code == 200
    assert raw.delete(f"/v2/topics/{name}").status_code == 200  # clients delete before they make one


def test_an_endpoint_is_removed_in_whatever_spelling(raw: httpx.Client, name: str) -> None:
    both = [{"url": "https://Example.COM/a"}, {"url": "https://example.com/b"}]
    raw.post(f"/v2/topics/{name}/endpoints", json={"endpoints": both})
    raw.request("DELETE", f"/v2/topics/{name}/endpoints", json={"endpoints": [{"url": "https://EXAMPLE.com/a"}]})
    assert raw.get(f"/v2/topics/{name}").json()["endpoints"] == [{"url": "https://example.com/b"}]


def test_flow_keys_are_listed_by_a_part_of_their_name(raw: httpx.Client, server: Server, name: str) -> None:
    flow = {"Upstash-Flow-Control-Key": name, "Upstash-Flow-Control-Value": "rate=1"}
    raw.post(f"/v2/publish/{server.to('/x')}", headers=flow | LATER)
    assert [key["flowControlKey"] for key in raw.get("/v2/flowControl", params={"search": name[2:]}).json()] == [name]
    assert raw.get("/v2/flowControl/never-used").status_code == 404
    assert raw.post(f"/v2/flowControl/{name}/pin", params={"period": "1s"}).status_code == 422
    assert raw.post("/v2/flowControl/never-used/resetRate").status_code == 404
