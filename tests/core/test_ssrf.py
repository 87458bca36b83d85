"""Where requests may go: a table of spellings, none of which reaches what is not the internet's (S4, SSRF)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_network
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.making import any_text, quick
from todoku.core.address_guard import MAX_URL, Guard, check_url
from todoku.core.errors import InvalidMessage, InvalidSetting

INTERNET = Guard()

# Each URL is refused when it is published: none of them is the usual spelling of anything.
MALFORMED = [
    # other spellings of IPv4 addresses, which resolvers would read
    "http://2130706433/", "http://02130706433/", "http://017700000001/", "http://0x7f000001/", "http://0X7F000001/",
    "http://0x7f.0x0.0x0.0x1/", "http://0x7f.0.0.1/", "http://0177.0.0.1/", "http://0177.0.0.01/",
    "http://127.0.0.01/",
    "http://127.0.0.001/", "http://0127.0.0.1/", "http://127.1/", "http://127.0.1/", "http://127.0x1/",
    "http://127.00.1/",
    "http://0/", "http://00/", "http://0x/", "http://0x0/", "http://0.0/", "http://0.0.0/", "http://1/",
    "http://10.1/",
    "http://2852039166/", "http://0xa9fea9fe/", "http://0xa9.0xfe.0xa9.0xfe/", "http://0251.0376.0251.0376/",
    "http://169.254.43518/", "http://169.16689662/", "http://0251.254.169.254/", "http://169.254.0xa9fe/",
    "http://4294967295/", "http://4294967296/", "http://99999999999999999999/", "http://256.256.256.256/",
    "http://127.0.0.256/", "http://1.2.3/", "http://1.2.3.4.5/", "http://127.0.0.0x1/", "http://a.1/",
    "http://a.0x1/",
    "http://3232235521/", "http://0xc0a80001/", "http://0300.0250.0.1/", "http://192.168.1/", "http://192.11010049/",
    "http://127.0.0.1./", "http://127.1./", "http://2130706433./", "http://0x7f000001./", "http://127.0.0.1../",
    "http://１２７.０.０.１/", "http://127。0。0。1/", "http://①②⑦.⓪.⓪.①/",
    "http://１６９．２５４．１６９．２５４/", "http://𝟏𝟐𝟕.𝟎.𝟎.𝟏/",
    "http://127.0.0.¹/", "http://0x７f000001/", "http://⑩.⓪.⓪.①/",
    # other spellings of IPv6 addresses, and what belongs to one machine
    "http://::1/", "http://[::1/", "http://::1]/", "http://[::1]]/", "http://[[::1]]/", "http://[]/", "http://[:]/",
    "http://[::1%25lo]/", "http://[::1%lo]/", "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/",
    "http://[127.0.0.1]/",
    "http://[::ffff:127.1]/", "http://[::ffff:0x7f000001]/", "http://[0:0:0:0:0:0:0:0:1]/", "http://[1::2::3]/",
    "http://[12345::]/", "http://[v1.fe80::a]/", "http://[::1]x/", "http://x[::1]/", "http://[::1]:/",
    "http://[localhost]/",
    "http://[::１]/", "http://[::ffff:127.0.0.01]/",
    # what becomes something else where names are made plain
    "http://good.example／x/", "http://good＠127.0.0.1/", "http://good：80/", "http://good？x/", "http://good＃x/",
    "http://℀.example/", "http://℡。/", "http://⁈.example/", "http://" + "é" * 64 + ".example/", "http://a。。b.example/",
    # users, and what is mistaken for one
    "http://user@host/", "http://user:pass@host/", "http://@host/", "http://:@host/", "http://host@127.0.0.1/",
    "http://good.example:80@127.0.0.1/", "http://good.example%40127.0.0.1/", "http://a@b@c/",
    "http://127.0.0.1%00@host/",
    # what one reader ends the host at, and another does not
    "http://good.example\\@127.0.0.1/", "http://good.example\\127.0.0.1/", "http:\\\\127.0.0.1\\",
    "http:/\\127.0.0.1/",
    "http://127.0.0.1\\.good.example/", "http://good.example%2f@127.0.0.1/", "http://127.0.0.1%2f.good.example/",
    "http://127.0.0.1%23.good.example/", "http://good.example;@127.0.0.1/", "http://good.example,127.0.0.1/",
    "http://good.example|127.0.0.1/", "http://127.0.0.1&good.example/", "http://(127.0.0.1)/", "http://<127.0.0.1>/",
    "http://good.example 127.0.0.1/", "http://good.example\t127.0.0.1/", "http://good.example\u00a0.x/",
    "http://a*b/",
    "http://%31%32%37.0.0.1/", "http://127%2e0%2e0%2e1/", "http://loc%61lhost/", "http://local\u00adhost\u200b/",
    "http://$/",
    # characters that make two lines of one, or nothing of something
    "http://host/\r\nX-Evil: 1", "http://host/\n", "http://host/\r", "http://host\r\n/", "http://host/\x00",
    "http://\x00host/",
    "http://host/a b", " http://host/", "http://host/ ", "\thttp://host/", "ht\ntp://host/", "http\t://host/",
    "http://host/\x7f",
    "http://host/\x1b[2J", "http://host/\u2028", "http://host/\u202egnp.exe", "http://host/\ufeff",
    "http://host/\u200b",
    "http://host/\ud800", "http://host/\x85", "http://host/\\..\\",
    # no scheme of ours
    "", " ", "host", "//host/", "/path", "host:80", "host/path", "http:", "http:/", "http://", "http:///",
    "http:///path",
    "https:///path", "http:host", "http:/host/", "https:/host/", "http//host/", "http:://host/", "httpx://host/",
    "ftp://host/",
    "file:///etc/passwd", "file://localhost/etc/passwd", "gopher://127.0.0.1:6379/_INFO",
    "dict://127.0.0.1:11211/stat",
    "ldap://127.0.0.1/", "tftp://127.0.0.1/x", "jar:http://host/!/", "javascript:alert(1)", "data:text/plain,hi",
    "ws://host/",
    "unix:///var/run/docker.sock", "http+unix://%2Fvar%2Frun%2Fdocker.sock/", "netdoc:///etc/passwd", "about:blank",
    "view-source:http://host/", "ｈｔｔｐ://host/", "http：//host/", "http://?host", "http://#host", "http://:80/",
    "http://?", "x" * 9,
    # no port, no name
    "http://host:/", "http://host:0/", "http://host:65536/", "http://host:99999/", "http://host:999999/",
    "http://host:-1/",
    "http://host:+80/", "http://host:8 0/", "http://host:80:80/", "http://host:x/", "http://host:0x50/",
    "http://host:８０/",
    "http://host:80.0/", "http://.host/", "http://host./", "http://host../", "http://a..b/", "http://./",
    "http://../",
    "http://-host/", "http://host-/", "http://a.-b.c/", "http://" + "a" * 64 + "/", "http://" + "a." * 127 + "a/",
    "http://faß.example/", "http://a\u200db.example/", "http://βόλος.example/", "http://ho~st/", "http://ho!st/",
    "http://'host'/",
    "http://host/" + "a" * MAX_URL, "http://{host}/", "http://`host`/", "http://host^/", 'http://"host"/',
]  # fmt: skip

# Each is a URL; what it leads to is refused when it is connected to. (host, its address)
FORBIDDEN = [
    "0.0.0.0", "0.0.0.1", "0.1.2.3", "0.255.255.255", "10.0.0.0", "10.0.0.1", "10.255.255.255", "100.64.0.0",
    "100.100.100.200",
    "100.127.255.255", "127.0.0.0", "127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.255", "169.254.0.0",
    "169.254.169.254",
    "169.254.170.2", "169.254.255.255", "172.16.0.0", "172.17.0.1", "172.31.255.255", "192.0.0.0", "192.0.0.8",
    "192.0.0.170",
    "192.0.0.192", "192.0.0.255", "192.0.2.0", "192.0.2.255", "192.88.99.0", "192.88.99.1", "192.88.99.255",
    "192.168.0.0",
    "192.168.1.1", "192.168.255.255", "198.18.0.0", "198.19.255.255", "198.51.100.0", "198.51.100.255", "203.0.113.0",
    "203.0.113.255", "224.0.0.0", "224.0.0.1", "239.255.255.250", "239.255.255.255", "240.0.0.0", "240.0.0.1",
    "254.1.1.1",
    "255.255.255.254", "255.255.255.255", "168.63.129.16",
    "::", "::1", "::2", "0:0:0:0:0:0:0:1", "0000:0000:0000:0000:0000:0000:0000:0001", "::0:1", "::127.0.0.1",
    "::7f00:1",
    "::169.254.169.254", "::8.8.8.8", "::ffff:127.0.0.1", "::ffff:7f00:1", "::FFFF:127.0.0.1",
    "0:0:0:0:0:ffff:127.0.0.1",
    "::ffff:10.0.0.1", "::ffff:a9fe:a9fe", "::ffff:169.254.169.254", "::ffff:192.168.0.1", "::ffff:0.0.0.0",
    "::ffff:224.0.0.1",
    "::ffff:0:127.0.0.1", "::ffff:0:a9fe:a9fe", "::ffff:0:8.8.8.8", "64:ff9b::127.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::8.8.8.8", "64:ff9b::10.0.0.1", "64:ff9b:1::1", "64:ff9b:1::a9fe:a9fe",
    "64:ff9b:1:ffff:ffff:ffff:ffff:ffff",
    "100::", "100::1", "100:0:0:0:ffff::1", "2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:1::1",
    "2001:2::1",
    "2001:10::1", "2001:20::1", "2001:1ff:ffff::1", "2001:db8::1", "2001:db8:ffff::1", "2002::1", "2002:7f00:1::1",
    "2002:7f00:0001::", "2002:a9fe:a9fe::1", "2002:0a00:0001::1", "2002:c0a8:0101::1", "2002:808:808::1", "3fff::1",
    "3fff:fff:ffff::1", "5f00::1", "5f00:ffff::1", "fc00::1", "fd00::1", "fd00:ec2::254", "fd20:ce::254",
    "fdff:ffff::1",
    "fe80::1", "fe80::a9fe:a9fe", "febf::1", "fec0::1", "feff::1", "ff00::1", "ff01::1", "ff02::1", "ff02::fb",
    "ff0e::1",
    "ffff::1", "4000::1", "8000::1", "e000::1", "1::1", "200::1", "0:1::1", "64:ff9a::1", "64:ff9c::1",
]  # fmt: skip

ON_THE_INTERNET = [
    "1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "93.184.216.34", "100.63.255.255", "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0", "169.253.255.255", "169.255.0.0", "172.15.255.255", "172.32.0.0", "191.255.255.255", "192.0.1.0",
    "192.0.3.0",
    "192.88.98.255", "192.88.100.0", "192.167.255.255", "192.169.0.0", "198.17.255.255", "198.20.0.0",
    "198.51.99.255",
    "198.51.101.0", "203.0.112.255", "203.0.114.0", "223.255.255.255", "::ffff:8.8.8.8", "::ffff:808:808",
    "2606:4700::1111",
    "2001:4860:4860::8888", "2001:200::1", "2001:db7::1", "2001:db9::1", "2003::1", "2a00:1450::1", "2620:fe::fe",
    "3ffe::1",
]  # fmt: skip


def test_the_table_is_as_long_as_it_says() -> None:
    assert len({*MALFORMED, *FORBIDDEN}) >= 300


@pytest.mark.parametrize("url", MALFORMED, ids=lambda url: ascii(url)[:60])
def test_a_url_that_is_not_in_the_usual_form_is_refused_by_name(url: str) -> None:
    with pytest.raises(InvalidMessage, match="Upstash-Callback") as refused:
        check_url(url, what="Upstash-Callback")
    assert refused.value.hint
    assert "pass@" not in str(refused.value)


@pytest.mark.parametrize("address", FORBIDDEN)
def test_an_address_that_is_not_the_internets_is_refused(address: str) -> None:
    assert INTERNET.refuses(address, "good.example")
    assert INTERNET.refuses(f"{address}%eth0", "good.example"), "a zone changes nothing"


@pytest.mark.parametrize("address", [address for address in FORBIDDEN if ":" in address])
def test_every_spelling_of_an_ipv6_address_is_the_same_address(address: str) -> None:
    exploded = IPv6Address(address).exploded
    for spelled in (exploded, exploded.upper(), str(IPv6Address(address))):
        assert INTERNET.refuses(spelled, "good.example")
        assert INTERNET.refuses(urlsplit(check_url(f"http://[{spelled}]:80/")).hostname or "", "good.example")


@pytest.mark.parametrize("address", ON_THE_INTERNET)
def test_the_internet_is_open_up_to_the_edges(address: str) -> None:
    assert INTERNET.refuses(address, "good.example") is None


@pytest.mark.parametrize(
    "text", ["", "x", "1", "127.1", "0x7f.1", "localhost", "1.2.3.4.5", "::1::", "10.0.0.1/8", "０.０.０.０", "%"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    assert INTERNET.refuses(text, "good.example")


# ------------------------------------------------------------------------------------------------ allowing

EVERYTHING = Guard(("0.0.0.0/0", "::/0", "good.example", "*.example"), loopback=True)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254", "169.254.170.2", "169.254.0.1", "fe80::1", "febf::1", "fe80::1%eth0", "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16", "fd00:ec2::254", "fd20:ce::254", "0.0.0.0", "0.0.0.1", "::", "224.0.0.1", "ff02::1",
        "255.255.255.255",
        "::ffff:169.254.169.254", "::169.254.169.254", "::ffff:0:169.254.169.254", "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe",
        "2002:a9fe:a9fe::1", "2001:0:a9fe:a9fe::1", "2001:0:1:1:0:0:5601:5601", "64:ff9b::100.100.100.200",
        "2002:0::1",
    ],
)  # fmt: skip
def test_metadata_and_link_local_stay_closed_whatever_is_allowed(address: str) -> None:
    assert EVERYTHING.refuses(address, "good.example")


def test_a_network_is_allowed_and_nothing_beside_it() -> None:
    guard = Guard(("10.1.0.0/16", "192.168.7.7", "fd12::/16"))
    for address in ("10.1.0.0", "10.1.255.255", "::ffff:10.1.2.3", "192.168.7.7", "fd12::1"):
        assert guard.refuses(address, "x") is None, address
    for address in (
        "10.0.255.255",
        "10.2.0.0",
        "192.168.7.8",
        "fd13::1",
        "2002:a01:203::1",
        "64:ff9b::10.1.2.3",
        "127.0.0.1",
    ):
        assert guard.refuses(address, "x"), address


def test_a_host_is_allowed_by_its_name_and_no_other() -> None:
    guard = Guard(("hooks.internal", " *.Svc.Cluster.Local "))
    for host in ("hooks.internal", "Hooks.Internal", "a.svc.cluster.local", "b.a.svc.cluster.local"):
        assert guard.refuses("10.0.0.1", host) is None, host
    for host in (
        "x.hooks.internal",
        "hooks.internal.evil.example",
        "svc.cluster.local",
        "evilsvc.cluster.local",
        "internal",
        "",
    ):
        assert guard.refuses("10.0.0.1", host), host
    assert guard.refuses("169.254.169.254", "hooks.internal")


def test_loopback_is_for_development() -> None:
    guard = Guard(loopback=True)
    for address in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"):
        assert guard.refuses(address, "localhost") is None, address
        assert INTERNET.refuses(address, "localhost"), address
    for address in ("10.0.0.1", "0.0.0.0", "::", "::127.0.0.1", "64:ff9b::127.0.0.1", "2002:7f00:1::1"):
        assert guard.refuses(address, "localhost"), address


@pytest.mark.parametrize(
    "entry", ["", "10.0.0.0/33", "10.0.0.1/8", "256.1.1.1", "127.1", "a b", "*", "*.", "http://x", "x:80", "-x", "::g"]
)
def test_an_entry_that_means_nothing_is_refused_by_the_name_of_its_setting(entry: str) -> None:
    with pytest.raises(InvalidSetting, match="http_allow"):
        Guard((entry,))


# ------------------------------------------------------------------------------------------------ the one spelling


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ("https://example.com", "https://example.com"),
        ("HTTPS://Example.COM/Path", "https://example.com/Path"),
        ("http://example.com:080/", "http://example.com:80/"),
        ("http://example.com:65535/", "http://example.com:65535/"),
        ("https://example.com//a//b?x=//y", "https://example.com//a//b?x=//y"),
        ("https://example.com/%7Euser/%2f?q=%41", "https://example.com/%7Euser/%2f?q=%41"),
        ("https://example.com/a?b#c", "https://example.com/a?b"),
        ("https://example.com?x=1", "https://example.com?x=1"),
        ("https://example.com/{id}?a=[1]|'\"<>^`", "https://example.com/{id}?a=[1]|'\"<>^`"),
        ("https://example.com/日本?q=é", "https://example.com/%E6%97%A5%E6%9C%AC?q=%C3%A9"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://XN--Bcher-KVA.example/", "https://xn--bcher-kva.example/"),
        ("https://日本。example/", "https://xn--wgv71a.example/"),
        ("http://localhost:3000/api", "http://localhost:3000/api"),
        ("http://my_service:8080/", "http://my_service:8080/"),
        ("http://127.0.0.1:9001/200?sleep=3", "http://127.0.0.1:9001/200?sleep=3"),
        ("http://[2606:4700:0:0::1111]:80/", "http://[2606:4700::1111]:80/"),
        ("https://example.com/user@host", "https://example.com/user@host"),
        ("https://1password.com/", "https://1password.com/"),
        ("https://0x7f.example/", "https://0x7f.example/"),
    ],
)  # fmt: skip
def test_a_url_is_sent_in_one_spelling(given_: str, expected: str) -> None:
    assert check_url(given_) == expected
    assert check_url(expected) == expected


def test_https_may_be_demanded() -> None:
    assert check_url("https://example.com/", https_only=True)
    with pytest.raises(InvalidMessage, match="not https"):
        check_url("http://example.com/", https_only=True)


@quick
@given(
    any_text
    | any_text.map("http://{}".format)
    | st.text("[]:@/\\?#%.0123456789abcxf", max_size=24).map("http://{}".format)
)
def test_what_passes_has_one_host_for_every_reader(text: str) -> None:
    """The standard library's reader, which others are like, sees the very host that was checked."""
    try:
        url = check_url(text)
    except InvalidMessage:
        return
    assert url.isascii()
    assert check_url(url) == url
    parts = urlsplit(url)
    assert parts.scheme in ("http", "https")
    assert parts.username is None
    assert parts.password is None
    assert parts.hostname
    assert url.startswith((f"{parts.scheme}://{parts.hostname}", f"{parts.scheme}://[{parts.hostname}]"))


@quick
@given(st.ip_addresses())
def test_no_private_address_of_the_standard_library_passes(address: IPv4Address | IPv6Address) -> None:
    """Ours is the stricter list."""
    if INTERNET.refuses(str(address), "x") is None:
        plain = address.ipv4_mapped or address if isinstance(address, IPv6Address) else address
        assert plain.is_global
        assert not plain.is_multicast


@quick
@given(st.sampled_from(["10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "192.168.0.0/16"]), st.integers(0, 65_535))
def test_no_tunnel_leads_to_a_private_address(network: str, offset: int) -> None:
    inner = int(ip_network(network)[offset])
    for outer in (
        inner,
        0xFFFF << 32 | inner,
        0xFFFF << 48 | inner,
        (0x64FF9B << 96) | inner,
        (0x2002 << 112) | (inner << 80),
    ):
        assert INTERNET.refuses(str(IPv6Address(outer)), "x"), IPv6Address(outer)
