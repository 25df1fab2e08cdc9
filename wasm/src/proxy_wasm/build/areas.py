"""The parts of the interpreter that a filter can do without, by the names of their first and last functions.

All of it holds for the interpreter of the pinned componentize-py alone, whose functions lie in the order of its source files.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

FUNCTIONS: Final = "af7d32edf4668f3e"
"""What the digest of the interpreter's functions begins with, in the pinned version."""


@dataclass(frozen=True, slots=True)
class Area:
    """Functions that go together.

    `runs` are the names of the first and the last function of each run of neighbours; `kept` are those among them that stay.
    `minus_one` are those that report an exception by the answer -1 rather than 0, among those that are called from outside the area.
    """

    name: str
    runs: tuple[tuple[str, str], ...]
    kept: frozenset[str] = frozenset()
    minus_one: frozenset[str] = frozenset()


COMPILER: Final = (
    Area("parser", (("_PyToken_OneChar", "_PyTokenizer_ensure_utf8"),)),
    Area("syntax tree", (("_PyAST_Fini", "append_ast_comprehension"),), minus_one=frozenset({"PyAST_Check"})),
    Area(
        "compiler",
        (
            ("_PyCodegen_Expression", "_PyCompile_Assemble"),
            ("_PyCfgBuilder_Free", "optimize_load_fast"),
            ("_PyFuture_FromAST", "_PyFuture_FromAST"),
            ("ste_dealloc", "check_kwd_patterns"),
        ),
        # Classes that are made at run time have names to mangle.
        kept=frozenset({"_Py_Mangle", "_Py_MaybeMangle"}),
        minus_one=frozenset({"_PyCompile_AstPreprocess"}),
    ),
)
"""What `compile`, `eval` and `exec` of text need."""

ALWAYS: Final = (
    Area("start of the interpreter", (("_PyConfig_InitCompatConfig", "_PyInterpreterConfig_InitFromState"),)),
    Area("command line", (("Py_RunMain", "pymain_exit_err_print"), ("PyRun_AnyFile", "PyRun_InteractiveLoop"))),
    Area("search path", (("_Py_Get_Getpath_CodeObject", "getpath_nowarn"),)),
    Area("the allocator mimalloc, which is not the one in use", (("_mi_malloc_generic", "mi_printf_amount"),)),
)
"""What ran when the interpreter was initialised, which was at build time."""

MODULES: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "_asyncio": (("PyInit__asyncio", ""),),
    "_bisect": (("PyInit__bisect", ""),),
    "_blake2": (("PyInit__blake2", ""),),
    "_codecs_cn": (("PyInit__codecs_cn", ""),),
    "_codecs_hk": (("PyInit__codecs_hk", ""),),
    "_codecs_iso2022": (("PyInit__codecs_iso2022", ""),),
    "_codecs_jp": (("PyInit__codecs_jp", ""),),
    "_codecs_kr": (("PyInit__codecs_kr", ""),),
    "_codecs_tw": (("PyInit__codecs_tw", ""),),
    "_csv": (("PyInit__csv", ""),),
    "_datetime": (("PyInit__datetime", ""),),
    "_decimal": (("PyInit__decimal", ""),),
    "_elementtree": (("PyInit__elementtree", ""),),
    "_heapq": (("PyInit__heapq", ""),),
    "_hmac": (("PyInit__hmac", ""),),
    "_json": (("PyInit__json", ""),),
    "_lsprof": (("PyInit__lsprof", ""),),
    "_md5": (("PyInit__md5", ""),),
    "_multibytecodec": (("PyInit__multibytecodec", ""),),
    "_opcode": (("PyInit__opcode", ""),),
    "_pickle": (("PyInit__pickle", ""),),
    "_queue": (("PyInit__queue", ""),),
    "_random": (("PyInit__random", ""),),
    "_sha1": (("PyInit__sha1", ""),),
    "_sha2": (("PyInit__sha2", ""),),
    "_sha3": (("PyInit__sha3", ""),),
    "_socket": (("PyInit__socket", "sock_gettimeout_getter"),),
    "_sqlite3": (("pysqlite_close_all_blobs", "_pysqlite_long_as_int64"), ("sqlite3_log", "pcache1Shrink")),
    "_sre": (("PyInit__sre", ""),),
    "_statistics": (("PyInit__statistics", ""),),
    "_struct": (("PyInit__struct", "lp_double_complex"),),
    "_suggestions": (("PyInit__suggestions", "PyInit__suggestions"),),
    "_symtable": (("PyInit__symtable", "symtable_init_constants"),),
    "_tracemalloc": (("PyInit__tracemalloc", ""),),
    "_zoneinfo": (("calendarrule_year_to_timestamp", "dayrule_year_to_timestamp"), ("PyInit__zoneinfo", "")),
    "array": (("PyInit_array", ""),),
    "atexit": (("PyInit_atexit", ""),),
    "binascii": (("PyInit_binascii", ""),),
    "cmath": (("PyInit_cmath", ""),),
    "math": (("PyInit_math", ""),),
    "pyexpat": (("PyInit_pyexpat", ""), ("parserCreate", "big2_scanCdataSection")),
    "select": (("PyInit_select", ""),),
    "unicodedata": (("PyInit_unicodedata", ""),),
    "zlib": (("PyInit_zlib", ""),),
}
"""Modules written in C that no other part calls, with their functions. An empty last name: up to where the next module begins."""
