"""Ordinary Python that no one had in mind when the interpreter was trimmed. Each function gives a value that JSON can hold.

The same functions run in the test's own interpreter, whose answers are the right ones. Nothing here depends on Python's version.
"""

import _strptime  # noqa: F401  # what datetime imports when it reads a date
import abc
import array
import base64
import binascii
import bisect
import codecs
import collections
import contextlib
import contextvars
import copy
import datetime
import encodings.cp1252
import encodings.raw_unicode_escape
import encodings.unicode_escape
import encodings.utf_7
import encodings.utf_16
import encodings.utf_16_le
import encodings.utf_32_be
import enum
import fractions
import functools
import gc
import hashlib
import heapq
import hmac
import html
import io
import itertools
import json
import logging
import math
import operator
import random
import re
import string
import struct
import sys
import textwrap
import time
import traceback
import types
import typing
import urllib.parse
import uuid
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

FUNCTIONS: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    FUNCTIONS[function.__name__] = function
    return function


Point = collections.namedtuple("Point", "x y")


class Colour(enum.Flag):
    RED = 1
    GREEN = 2
    BLUE = 4


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@dataclass(order=True)
class Item:
    weight: float
    name: str = field(compare=False)
    tags: list[str] = field(default_factory=list, compare=False)


@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: tuple[int, ...] = ()


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self) -> float: ...


class Square(Shape):
    def __init__(self, side: float) -> None:
        self.side = side

    def area(self) -> float:
        return self.side**2


class Meta(type):
    def __new__(cls, name: str, bases: tuple[type, ...], space: dict[str, Any], **extra: Any) -> "Meta":
        return super().__new__(cls, name, bases, {**space, "extra": extra, "order": [name for name in space if not name.startswith("__")]})

    def __call__(cls, *arguments: Any) -> Any:
        made = super().__call__(*arguments)
        made.called = True
        return made


class Upper:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = "_" + name

    def __get__(self, instance: Any, owner: type) -> Any:
        return getattr(instance, self.name, None)

    def __set__(self, instance: Any, value: str) -> None:
        setattr(instance, self.name, value.upper())


def raised(call: Callable[..., Any], *arguments: Any) -> str:
    try:
        call(*arguments)
    except BaseException as error:
        return type(error).__name__
    return "nothing"


@case
def text_methods() -> Any:
    text = "  Grüße, Ωmega and ﬁn — naïve İstanbul\t\n"
    return [
        text.strip().upper(), text.casefold(), text.title(), text.swapcase(), text.split(), text.partition("and"), text.expandtabs(3),
        text.center(60, "*"), text.zfill(50), text.replace("a", "_", 2), text.find("Ω"), text.rindex("a"), text.count("n"),
        [c.isalpha() for c in text], [c.isnumeric() for c in "5½٣Ⅷx"], "ß".isidentifier(), "x1".isidentifier(), text.translate({0x20: "_", 0xE4: None}),
        "a,b;c".maketrans("abc", "xyz"), text.splitlines(), "abc".ljust(6) + "|", ascii(text), repr(text), text[::-1], text[3:-3:2],
    ]  # fmt: skip


@case
def text_formats() -> Any:
    number, real = -1234567, 12345.6789
    return [
        f"{number:,} {number:_} {number:+d} {number:x} {number:#b} {number:>20} {number:^20}|", f"{real:.2f} {real:e} {real:g} {real:%} {real:,.1f}",
        "%5s|%-5s|%05d|%.3f|%x|%r|%c" % ("a", "b", 42, math.pi, 255, "q", 65), "{0!r} {1[2]} {2.imag} {a:>{w}}".format("x", [1, 2, 3], 3j, a=7, w=5),
        string.Template("$who is ${what}").substitute(who="it", what="fine"), f"{datetime.date(2024, 2, 29):%d.%m.%Y}", format(2.5e-10, "g"),
        f"{float('nan')} {float('inf')} {-0.0} {1e22} {1e16} {0.1 + 0.2}", str(1.0), repr(1e-7), f"{complex(1, -2)}", f"{True:d}", format(12.5, "08.2f"),
    ]  # fmt: skip


@case
def encodings() -> Any:
    out = []
    for name in (
        "utf-8",
        "utf-16",
        "utf-16-le",
        "utf-32-be",
        "latin-1",
        "ascii",
        "cp1252",
        "utf-7",
        "raw_unicode_escape",
        "unicode_escape",
    ):
        for errors in ("strict", "replace", "ignore", "xmlcharrefreplace", "backslashreplace", "surrogateescape"):
            try:
                out.append("aé€😀\x80".encode(name, errors).hex())
            except (UnicodeError, LookupError) as error:
                out.append(type(error).__name__)
    for raw in (b"\xff\xfe\x00", b"a\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", bytes(range(256))):
        for errors in ("replace", "ignore", "backslashreplace", "surrogateescape"):
            out.append(ascii(raw.decode("utf-8", errors)))
    decoder = codecs.getincrementaldecoder("utf-8")()
    out.append([decoder.decode(bytes([byte])) for byte in "aé€".encode()])
    return out


@case
def whole_numbers() -> Any:
    big = 3**500 + 7
    return [
        str(big), hex(big), big.bit_length(), big % 10**9, divmod(big, 12345678901234567890), pow(7, 1000, 10**18 + 9), big.to_bytes(120, "big").hex(),
        int.from_bytes(b"\xff" * 40, "little", signed=True), (-big) >> 77, big & ~(1 << 300), math.isqrt(big), math.gcd(big, 3**400), math.comb(100, 50),
        math.factorial(60), int("z" * 30, 36), -7 // 2, -7 % 3, round(1250, -2), int("  -0b101 ", 0), sum(range(1000)), (10**30).bit_count(), pow(3, -1, 11),
    ]  # fmt: skip


@case
def real_numbers() -> Any:
    values = [0.1, 1 / 3, 1e308, 5e-324, -2.5, 3.5, 1e15 + 0.3]
    return [
        [repr(v) for v in values], [v.hex() for v in values], [v.as_integer_ratio() for v in values], [round(v) for v in values[3:]], [round(v, 1) for v in values],
        math.fsum([0.1] * 10), [math.floor(v) for v in values[3:]], [math.frexp(v) for v in values], [f"{math.sin(v):.9f}" for v in values],
        f"{math.log2(10):.12f} {math.gamma(5.5):.9f} {math.hypot(3, 4, 12):.9f} {math.erf(0.3):.9f}", float("1_000.5e-3"), math.nextafter(1.0, 2.0), math.copysign(1, -0.0),
        raised(float, "x"), raised(math.sqrt, -1), raised(lambda: 1 / 0), raised(lambda: 1e308 * 10 // 0), str(fractions.Fraction(3, 7) ** 5 + fractions.Fraction("0.125")),
        [(1 + 2j) * (3 - 1j) == 5 + 5j, abs(3 + 4j), str((2j) ** 2)],
    ]  # fmt: skip


@case
def containers() -> Any:
    data = [5, 3, 9, 1, 5, 8]
    table = {"b": 2, "a": 1, "c": [1, {"d": None}]}
    order = collections.OrderedDict(sorted(table.items(), key=operator.itemgetter(0)))
    order.move_to_end("a")
    ring = collections.deque(data, maxlen=4)
    ring.rotate(2)
    ring.appendleft(0)
    chain = collections.ChainMap({"x": 1}, {"x": 2, "y": 3})
    groups: collections.defaultdict[int, list[int]] = collections.defaultdict(list)
    for value in data:
        groups[value % 3].append(value)
    heap = list(data)
    heapq.heapify(heap)
    place = sorted(data)
    bisect.insort(place, 4)
    data[1:3] = [7, 7, 7]
    del data[::2]
    return [
        data, list(order), list(ring), dict(chain), dict(groups), [heapq.heappop(heap) for _ in range(3)], heapq.nlargest(2, place), place,
        sorted({1, 2, 3} ^ {3, 4} | {9}), sorted(frozenset("abc") - {"a"}), {**table, "z": 0} == table | {"z": 0}, table.setdefault("q", 5), table.pop("b"),
        [*zip("abc", range(5), strict=False)], list(map(operator.add, [1, 2], [3, 4])), collections.Counter("abracadabra").most_common(2), Point(1, 2)._replace(y=5)._asdict(),
        [list(g) for _, g in itertools.groupby("aaabbc")], list(itertools.combinations("abcd", 2))[:4], list(itertools.accumulate([1, 2, 3], operator.mul)),
        list(itertools.islice(itertools.cycle("xy"), 5)), [*itertools.chain.from_iterable([[1], [2, 3]])], list(itertools.pairwise("abc")), list(itertools.product([0, 1], repeat=2)),
        sorted(["b", "A", "c"], key=str.lower, reverse=True), raised(sorted, [1, "a"]), [*reversed(range(0, 10, 3))], any(x > 8 for x in data), (1, 2) < (1, 3),
        array.array("H", [1, 2, 65535]).tobytes().hex(), raised(lambda: {}[1]), raised(lambda: [][0]), raised(lambda: {[]: 1}),
    ]  # fmt: skip


@case
def classes_made_at_run_time() -> Any:
    class Local(metaclass=Meta, k=1):
        value = 3
        name = Upper()
        __private = 5

        def __init__(self) -> None:
            self.name = "abc"

        def get(self) -> int:
            return self.__private

        @property
        def double(self) -> int:
            return self.value * 2

        @double.setter
        def double(self, value: int) -> None:
            self.value = value // 2

        @classmethod
        def make(cls) -> "Local":
            return cls()

        @staticmethod
        def nothing() -> None: ...

        def __getattr__(self, name: str) -> str:
            return f"<{name}>"

        def __add__(self, other: Any) -> str:
            return f"add {other}"

        def __matmul__(self, other: Any) -> str:
            return "matmul"

        def __iter__(self) -> Iterator[int]:
            yield from range(3)

        def __contains__(self, value: Any) -> bool:
            return value == 1

        def __len__(self) -> int:
            return 7

        def __getitem__(self, key: Any) -> Any:
            return key if not isinstance(key, slice) else [key.start, key.stop, key.step]

        def __format__(self, spec: str) -> str:
            return f"spec {spec}"

        def __init_subclass__(cls, **options: Any) -> None:
            cls.options = options

    one = Local.make()
    one.double = 50
    other = type("Other", (Local,), {"y": 1, "__slots__": ("z",)}, deep=True)
    generic = types.new_class("Sized", (typing.Generic[typing.TypeVar("T")],))
    return [
        one.name, one.get(), one.value, one.missing, one + 1, one @ 2, [*one], 1 in one, len(one), one[1:2], f"{one:x}", Local.extra, Local.order, one.called,
        other.options, [base.__name__ for base in other.__mro__], isinstance(other(), Local), raised(Shape), Square(3).area(), str(generic[int])[-6:-1],
        functools.reduce(lambda a, b: a * b, range(1, 6)), Colour(5) == Colour.RED | Colour.BLUE, [level.name for level in Level], Level(2) > 1, raised(Colour, 64),
        sorted([Item(2.0, "b"), Item(1.0, "a", ["t"])])[0].tags, asdict(Item(1.0, "x")), replace(Frozen(1), b=(2,)).b, raised(setattr, Frozen(1), "a", 2), hash(Frozen(1)) == hash(Frozen(1)),
        raised(lambda: super(int, "x")), callable(one), Local.__qualname__, vars(types.SimpleNamespace(a=1)), bool(types.MappingProxyType({})), int.__add__(1, 2), object.__repr__(1)[:5],
    ]  # fmt: skip


@case
def generators_and_coroutines() -> Any:
    def echo() -> Iterator[Any]:
        got = []
        try:
            while True:
                got.append((yield len(got)))
        except KeyError as error:
            yield ["caught", error.args]
        finally:
            got.append("end")

    def outer() -> Iterator[Any]:
        result = yield from inner()
        yield ["result", result]

    def inner() -> Iterator[int]:
        yield 1
        return 2

    class Ready:
        def __await__(self) -> Any:
            return (yield "waiting")

    async def nested(value: int) -> int:
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(closed)
            return value + await Ready()

    ended = []

    async def closed() -> None:
        ended.append(True)

    async def numbers() -> Any:
        for number in range(3):
            yield number
            await Ready()

    async def main() -> Any:
        return [number async for number in numbers()] + [await nested(1), await nested(2)]

    first = echo()
    next(first)
    steps: list[Any] = [first.send("a"), first.send("b"), first.throw(KeyError(5))]
    first.close()
    running = main()
    answer: Any = None
    seen = 0
    try:
        while True:
            answer = running.send(10 if seen else None)
            seen += 1
    except StopIteration as stop:
        answer = stop.value
    with contextlib.suppress(ZeroDivisionError):
        _ = 1 / 0
    return [steps, list(outer()), answer, seen, ended, raised(next, iter([])), sum(x * y for x in range(3) for y in range(x) if y % 2 == 0)]


@case
def exceptions() -> Any:
    def deep(depth: int) -> int:
        return 1 + deep(depth + 1)

    out: list[Any] = []
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            error.add_note("a note")
            raise ValueError("second") from error
    except ValueError as error:
        lines = "".join(traceback.format_exception(error))
        out += [
            "direct cause" in lines,
            "a note" in lines,
            lines.count("Traceback"),
            type(error.__cause__).__name__,
            error.__traceback__ is not None,
        ]
    try:
        raise ExceptionGroup("many", [ValueError(1), ExceptionGroup("in", [TypeError(2), KeyError(3)])])
    except* TypeError as group:
        out.append([type(e).__name__ for e in group.exceptions])
    except* (ValueError, KeyError) as group:
        out.append(len(group.exceptions))
    out += [raised(deep, 0), raised(int, "9" * 5000), raised(lambda: None.x), raised(lambda: undefined), raised(lambda: (1).__missing__)]  # noqa: F821
    too_much = {"MemoryError", "OverflowError"}
    out += [
        raised(bytearray, 1 << 40) in too_much,
        raised(lambda: "x" * (1 << 40)) in too_much,
        raised(lambda: [0] * (1 << 40)) in too_much,
        raised(lambda: 1 << (1 << 60)) in too_much,
    ]
    out += [
        traceback.format_list([("f", 1, "n", "line")]),
        str(OSError(2, "none")),
        repr(StopIteration(3)),
        KeyError("k").args,
        raised(open, "/no/such/file") in {"FileNotFoundError", "OSError"},
    ]

    @contextlib.contextmanager
    def manager() -> Iterator[int]:
        try:
            yield 1
        except ValueError:
            out.append("managed")

    with manager() as value:
        out.append(value)
        raise ValueError
    return out


@case
def matching() -> Any:
    def look(value: Any) -> Any:
        match value:
            case int() | float() if value > 100:
                return "large"
            case [first, *rest]:
                return ["list", first, len(rest)]
            case {"kind": str(kind), **others}:
                return [kind, sorted(others)]
            case Point(x=0, y=y):
                return ["on axis", y]
            case Item(name="n"):
                return "item"
            case Colour.RED:
                return "red"
            case None | "":
                return "empty"
            case str() as text if text.isdigit():
                return int(text)
            case _:
                return "other"

    return [look(v) for v in (101, 5, [1, 2, 3], {"kind": "k", "a": 1}, Item(1, "n"), Colour.RED, None, "", "42", "x", (9,), 2j)] + [
        look([Point(0, 3)])
    ]


@case
def raw_bytes() -> Any:
    raw = bytearray(b"hello world")
    view = memoryview(raw)
    view[0:5] = b"HELLO"
    packed = struct.pack("<IhQd?3s", 1, -2, 3, 0.5, True, b"abc")
    file = io.BytesIO(b"line one\nline two\n")
    text = io.StringIO("a\r\nb\n")
    return [
        raw.decode(), view[::2].tobytes().decode(), view.cast("B").shape, struct.unpack("<IhQd?3s", packed)[:4], struct.calcsize("!HHL"), raw.find(b"w"), bytes.fromhex("00 ff").hex("-"),
        base64.b64encode(packed).decode(), base64.urlsafe_b64decode(b"_-8=").hex(), base64.b32encode(b"abc").decode(), base64.b85encode(b"abcd").decode(), binascii.crc32(b"abc"), zlib.adler32(b"abc"),
        zlib.decompress(zlib.compress(b"x" * 1000, 9)).count(b"x"), raised(zlib.decompress, b"bad"), [line.decode() for line in file], file.seek(2), file.read(3).decode(), text.readlines(), raised(base64.b64decode, b"a"),
        len(b"a,b".split(b",")), (b"%d %s" % (5, b"x")).decode(), b"abc".translate(None, b"b").decode(), b"\x00\xff".isascii(), b"Abc".swapcase().decode(), (bytes(3) + b"\n".ljust(3)).hex(), list(b"ab"), (5).to_bytes(2, "big").hex(),
    ]  # fmt: skip


@case
def digests() -> Any:
    return [
        *(hashlib.new(name, b"abc").hexdigest() for name in ("md5", "sha1", "sha256", "sha512", "sha3_256", "blake2b")),
        hmac.new(b"k", b"m", "sha256").hexdigest(), hmac.compare_digest(b"a", b"a"), hashlib.blake2s(b"x", digest_size=8, key=b"k").hexdigest(),
        str(uuid.uuid5(uuid.NAMESPACE_DNS, "a.b")), len(str(uuid.uuid4())),
    ]  # fmt: skip


@case
def patterns() -> Any:
    text = "2024-02-29 10:11:12 level=WARN user='ann' ip=10.0.0.1 ünï"
    compiled = re.compile(r"(?P<key>\w+)=(?P<quote>['\"]?)(?P<value>[\w.]+)(?P=quote)", re.UNICODE)
    return [
        [m.groupdict() for m in compiled.finditer(text)], re.sub(r"\d+", lambda m: str(int(m[0]) + 1), text), re.split(r"[\s:-]+", text), re.findall(r"\b\w{3,5}\b", text), re.escape("a.b*c"),
        bool(re.fullmatch(r"(?i)ABC(?=d)?", "abc")), re.match(r"(?:a|b)*?c", "ababc").span(), re.search(r"(?<=ip=)[\d.]+", text)[0], re.sub(r"(?x) (a) | (b)  # c", r"<\1\2>", "ab"), raised(re.compile, "(").endswith("rror"),
        re.search(rb"\xff+", b"a\xff\xff").span(), re.match(r"(a+)+$", "a" * 18 + "b"), re.sub(r"(?m)^", "> ", "a\nb"), compiled.pattern[:5], re.match(r"(?>a+)b", "aab") is not None,
    ]  # fmt: skip


@case
def json_text() -> Any:
    value = {"a": [1, 2.5, -0.0, 1e400, None, True, 'é\u2028\x00"\\/'], "b": {"": {}}, "😀": []}
    return [
        json.dumps(value, sort_keys=True), json.dumps(value, indent=2, ensure_ascii=False), json.loads(' {"a": [1e3, -1.5E-2, "\\ud83d\\ude00", "\\n"], "b": null} '), json.dumps({1: 2, None: 3, True: 4}),
        raised(json.loads, '{"a":}'), raised(json.loads, "[1,]"), raised(json.loads, b"\xff"), raised(json.dumps, {1, 2}), raised(json.dumps, float("nan"), *()), json.loads("[" * 50 + "]" * 50) == eval_brackets(50),
        json.dumps([1, 2], separators=(",", ":")), json.dumps(object(), default=lambda o: "o"), json.loads("1", parse_int=float), json.loads('{"a":1,"a":2}', object_pairs_hook=list), raised(json.loads, "[" * 300),
        json.dumps(Point(1, 2)), json.dumps(Level.LOW), raised(json.loads, "1" * 5000), json.loads(json.dumps("\ud800")) == "\ud800",
    ]  # fmt: skip


def eval_brackets(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@case
def times() -> Any:
    zone = datetime.timezone(datetime.timedelta(hours=5, minutes=30), "IST")
    moment = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456, tzinfo=zone)
    return [
        moment.isoformat(), moment.astimezone(datetime.UTC).isoformat(), str(moment - datetime.timedelta(days=366)), moment.timestamp(), datetime.datetime.fromisoformat("2024-03-01T00:00:00+00:00").year,
        moment.strftime("%Y/%j %H:%M:%S %z %Z"), datetime.date(2024, 1, 1).isocalendar()[1], str(datetime.timedelta(seconds=-1)), datetime.timedelta(hours=1) / datetime.timedelta(minutes=7),
        raised(datetime.date, 2023, 2, 29), moment.replace(fold=1).fold, repr(datetime.time(1, 2)), time.strftime("%Y-%m-%d", time.gmtime(86400 * 365)), time.gmtime(0)[:6], time.time() > 1e9, time.monotonic() > 0,
        datetime.datetime.strptime("01 Feb 2024", "%d %b %Y").isoformat(), moment.utctimetuple().tm_hour,
    ]  # fmt: skip


@case
def addresses() -> Any:
    parts = urllib.parse.urlsplit("https://us%65r:pw@ex.org:8443/a/b;c?q=1&q=2&e=#frag")
    return [
        list(parts), parts.port, parts.username, urllib.parse.parse_qs(parts.query, keep_blank_values=True), urllib.parse.quote("a b/ü?", safe=""), urllib.parse.unquote_plus("a+b%C3%BC%zz"), urllib.parse.urlencode([("a", "1 2"), ("b", "ü")]),
        urllib.parse.urljoin("http://a/b/c", "../d?e"), raised(lambda: urllib.parse.urlsplit("http://a:99999").port), html.escape("<a href='x'>&"), html.unescape("&lt;&eacute;&#x41;&bogus;"),
        textwrap.wrap("the quick brown fox jumps over", 12), textwrap.dedent("  a\n   b"), textwrap.shorten("a b c d e f", 7),
    ]  # fmt: skip


@case
def functions() -> Any:
    @functools.lru_cache(maxsize=2)
    def cached(x: int) -> int:
        return x * 2

    @functools.singledispatch
    def kind(value: Any) -> str:
        return "any"

    @kind.register
    def _(value: int) -> str:
        return "int"

    def every(a: int, /, b: int, *rest: int, c: int = 3, **more: int) -> list[Any]:
        return [a, b, rest, c, sorted(more)]

    counter = itertools.count()
    made = [lambda n=n: n + next(counter) for n in range(3)]
    [cached(n) for n in (1, 2, 1, 3, 1)]
    return [
        list(cached.cache_info()), kind(1), kind("x"), every(1, 2, 4, c=5, z=6), raised(every), raised(every, 1), functools.partial(every, 1, c=9)(2), [f() for f in made], every.__code__.co_varnames, every.__defaults__,
        operator.methodcaller("upper")("a"), operator.attrgetter("a.b")(types.SimpleNamespace(a=types.SimpleNamespace(b=4))), sorted(typing.get_type_hints(every)), (lambda *a, **k: [a, k])(*[1], x=2),
        functools.cmp_to_key(lambda a, b: b - a)(1) < functools.cmp_to_key(lambda a, b: b - a)(0), [f.__name__ for f in (every, len)], globals()["case"] is case, locals().get("nothing"),
    ]  # fmt: skip


@case
def memory() -> Any:
    class Node:
        def __init__(self) -> None:
            self.other: Any = None

        def __del__(self) -> None:
            gone.append(1)

    gone: list[int] = []
    for _ in range(50):
        one, two = Node(), Node()
        one.other, two.other = two, one
    reference = weakref.ref(one)
    finalizer = weakref.finalize(two, gone.append, 2)
    table: weakref.WeakValueDictionary[str, Node] = weakref.WeakValueDictionary(a=one)
    del one, two
    gc.collect()
    large = [bytes(1000) for _ in range(3000)]
    nested = copy.deepcopy({"a": [1, {2}], "b": Item(1.0, "x", ["t"])})
    same = copy.copy(nested["a"])
    return [
        sum(gone),
        reference() is None,
        finalizer.alive,
        len(table),
        len(large),
        nested["a"][0],
        same is nested["a"],
        sys.getrefcount(nested) > 0,
        sys.intern("ab") is sys.intern("a" + "b"),
    ]


@case
def surroundings() -> Any:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("v", default=1)
    context = contextvars.copy_context()
    stream = io.StringIO()
    logger = logging.getLogger("holdout")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    logger.warning("a %s", "b")
    logger.removeHandler(handler)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("careful", stacklevel=1)
    generator = random.Random(5)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print("a", 1, sep="-", end="!")
    frame = sys._getframe()
    return [
        context.run(variable.set, 5) is not None, variable.get(), stream.getvalue(), len(caught), str(caught[0].message), generator.randint(1, 100), generator.sample(range(10), 3), f"{generator.gauss(0, 1):.6f}",
        printed.getvalue(), frame.f_code.co_name, sys.maxsize > 0, sys.byteorder, sorted(vars(types.SimpleNamespace(x=1))), bool(sys.modules), hash("a") == hash("a"), len({random.random() for _ in range(9)}),
        typing.cast(int, "x"), str(typing.Optional[int])[-4:-1] != "", isinstance([], typing.Sequence), callable(print), id(frame) == id(frame),
    ]  # fmt: skip


@case
def long_work() -> Any:
    sieve = bytearray([1]) * 5000
    for number in range(2, 71):
        if sieve[number]:
            sieve[number * number :: number] = bytes(len(sieve[number * number :: number]))
    words = collections.Counter(re.findall(r"\w+", "the cat and the dog and the bird " * 200))
    grid = [[(x * y) % 7 for x in range(40)] for y in range(40)]
    state = 1
    for _ in range(20000):
        state = (state * 1103515245 + 12345) % (1 << 31)
    return [
        sum(sieve[2:]),
        sorted(words.items()),
        sum(map(sum, grid)),
        [*map(list, zip(*grid, strict=True))][3][:5],
        state,
        "".join(sorted(str(state) * 50))[:20],
        sorted(range(1000), key=lambda n: (n * 7919) % 1000)[:5],
    ]
