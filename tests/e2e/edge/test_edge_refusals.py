"""Every refusal reaches its caller as gRPC or as JSON, with a code and a message that help."""

import httpx
import pytest

from .running_edge import SERVICE, Caller, Edge, frame, raw_call


@pytest.mark.parametrize(
    "name",
    [
        "DieBefore",
        "DieInHead",
        "DieAmid",
        "Short",
        "Long",
        "Sizeless",
        "BadSize",
        "NegativeSize",
        "HugeSize",
        "Chunked",
        "ChunkedSizeless",
        "Empty",
        "BadStatus",
        "Html",
        "Html200",
        "Typeless",
        "Plain500",
        "Plain404",
        "Bare400",
        "Bare503",
        "Bare429",
        "Sized503",
        "NoHttp",
    ],
)
def test_x(faulty_edge: Edge, name: str) -> None:
    with faulty_edge.channel() as channel:
        try:
            r = Caller(channel).refused(name)
        except AssertionError:
            r = Caller(channel).unary(name)(b"x", timeout=5)
    print("\nGRPC", name, r)
    a = raw_call(faulty_edge.port, SERVICE + name, frame(b"x"))
    print("RAW ", a)
    try:
        r = httpx.get(faulty_edge.url + "/v2/" + name)
        print("REST", r.status_code, r.headers, r.text[:300])
    except httpx.HTTPError as e:
        print("REST", repr(e))


def test_y(edge, caller, router):
    print()
    print(caller.refused("Refuse", b"8;queue full %25 %C3%A9"))
    print(raw_call(edge.port, SERVICE + "Refuse", frame(b"3;hm %25")))
    print(raw_call(edge.port, SERVICE + "Echo", frame(b"3;hm %25")))
    print(router.seen)
    for frames in ((), (b"\0\0\0",), (b"\0\0\0", b"\0\2hm"), (b"\1\0\0\0\2ab",), (b"\0\0\0\xff\xffab",)):
        print(frames, raw_call(edge.port, SERVICE + "Echo", *frames))
    print(httpx.post(edge.url + SERVICE + "Refuse", content=b"3;x", headers={"content-type": "application/x-protobuf"}).text)
