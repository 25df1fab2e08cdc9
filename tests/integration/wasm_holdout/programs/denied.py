"""What a trimmed module cannot do: each function tries one such thing, and tells the exception that came of it."""

import gc
import sys
from collections.abc import Callable
from typing import Any

ATTEMPTS: dict[str, Callable[[], Any]] = {}
CUT = (
    "_asyncio", "_codecs_cn", "_codecs_jp", "_csv", "_decimal", "_elementtree", "_lsprof", "_multibytecodec", "_pickle", "_queue", "_socket", "_sqlite3", "_statistics", "_symtable", "_tracemalloc",
    "_zoneinfo", "array", "cmath", "pyexpat", "select", "unicodedata", "_random", "_hmac", "zlib", "_datetime",
)  # fmt: skip


def attempt(function: Callable[[], Any]) -> Callable[[], Any]:
    ATTEMPTS[function.__name__] = function
    return function


@attempt
def evaluating() -> Any:
    return eval("1 + 1")


@attempt
def executing() -> Any:
    exec("x = 1")


@attempt
def compiling() -> Any:
    return compile("x", "f", "exec")


@attempt
def compiling_to_a_tree() -> Any:
    return compile("x", "f", "exec", flags=0x400)


@attempt
def compiling_bytes() -> Any:
    return compile(b"# coding: latin-1\nx", "f", "single")


@attempt
def compiling_an_object() -> Any:
    return compile(object(), "f", "exec")


@attempt
def a_named_tuple_made_late() -> Any:
    import collections

    return collections.namedtuple("Late", "a b")(1, 2)


def importing() -> dict[str, str]:
    """Each cut module by import, and by the import machinery's own function, past the finder."""
    told = {}
    for name in CUT:
        if name in sys.modules:
            continue
        told[name] = _name(lambda name=name: __import__(name))
        told[f"create {name}"] = _name(lambda name=name: _create(name))
    told["encoding"] = _name(lambda: "x".encode("shift_jis"))
    told["character name"] = _name(lambda: "x".encode("ascii", "namereplace") and "é".encode("ascii", "namereplace"))
    return told


def _create(name: str) -> Any:
    import importlib.machinery

    specification = importlib.machinery.ModuleSpec(name, importlib.machinery.BuiltinImporter)
    module = importlib.machinery.BuiltinImporter.create_module(specification)
    importlib.machinery.BuiltinImporter.exec_module(module)
    return module


def every_type() -> dict[str, int]:
    """Does to every type of Python's what should not end the interpreter: shows it, hashes it, makes one, reads all of it."""
    todo, seen = [object], {id(object): object}
    while todo:
        for one in type.__subclasses__(todo.pop()):
            if id(one) not in seen:
                seen[id(one)] = one
                todo.append(one)
    told: dict[str, int] = {"types": len(seen), "exceptions": 0, "answers": 0}
    arguments: tuple[tuple[Any, ...], ...] = ((), (1,), ("x",), (b"x",), ([],), (1, 2), (None, None, None), (gc,))
    for one in sorted(seen.values(), key=lambda one: (one.__module__, one.__qualname__)):
        if one.__module__.startswith("proxy_wasm"):
            continue  # another dispatcher would replace the one that runs this
        for work in (
            lambda one=one: [repr(one), hash(one), one == 1, one.__doc__],
            lambda one=one: {name: getattr(one, name, None) for name in dir(one)},
        ):
            _count(told, work)
        for given in arguments:
            _count(told, lambda one=one, given=given: _use(one, given))
    return told


def _use(one: type, given: tuple[Any, ...]) -> None:
    made = one(*given)
    for work in (
        repr,
        hash,
        bool,
        len,
        iter,
        str,
        abs,
        dir,
        lambda made: made == made,
        lambda made: made < made,
        lambda made: made + made,
        lambda made: made[0],
    ):
        try:
            work(made)
        except Exception:
            continue


def _count(told: dict[str, int], work: Callable[[], Any]) -> None:
    try:
        work()
        told["answers"] += 1
    except BaseException:
        told["exceptions"] += 1


def _name(work: Callable[[], Any]) -> str:
    try:
        work()
    except BaseException as error:
        return type(error).__name__
    return "nothing"


def attempts() -> dict[str, str]:
    """Each attempt's exception."""
    return {name: _name(function) for name, function in ATTEMPTS.items()}
