"""Build hook: makes the Python code of the contracts in `proto/`. Nothing that it writes is kept in git."""

import re
import shutil
import sys
from importlib.resources import files
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).resolve().parent
# In a checkout the contracts lie beside the SDK; in an sdist they were copied into it.
PROTO = next(path for path in (HERE.parent / "proto", HERE / "proto") if path.is_dir())
OUT = HERE / "src" / "mcprun" / "protocol"

# protoc derives Python modules from the folders of the .proto files. These are the packages they get in ours.
MODULES = {"inference": "inference", "mcprun/v1": "v1"}
DEFAULT_POOL = "_descriptor_pool.Default()"
INIT = '"""Made from proto/ by the build. Do not edit."""\n'


class ProtocolBuildHook(BuildHookInterface[Any]):
    """Runs protoc before the wheel (or the editable install) is put together."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generates `mcprun.protocol`."""
        generate(OUT)


def generate(out: Path) -> None:
    """Compiles every contract into the package `out`.

    The messages are registered in a descriptor pool of their own (`mcprun.descriptors.POOL`). In the default pool they
    would collide with those of any other client of the same protocol that is imported into the process, such as
    `tritonclient`.
    """
    from grpc_tools import protoc

    scratch = out.with_name("protocol.building")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.rglob("*.proto"))
    plugin = shutil.which("protoc-gen-mypy_grpc", path=f"{Path(sys.executable).parent}:{_path()}")
    arguments = [
        "protoc",
        f"-I{PROTO}",
        f"-I{files('grpc_tools') / '_proto'}",
        f"--python_out={scratch}",
        f"--pyi_out={scratch}",
        f"--grpc_python_out={scratch}",
        *([f"--plugin=protoc-gen-mypy_grpc={plugin}", f"--mypy_grpc_out={scratch}"] if plugin else []),
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed; its messages are above")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    (out / "__init__.py").write_text(INIT)
    for folder, package in MODULES.items():
        target = out / package
        target.mkdir()
        (target / "__init__.py").write_text(INIT)
        for path in sorted((scratch / folder).glob("*.py*")):
            (target / path.name).write_text(_adapt(path.read_text()))
    shutil.rmtree(scratch)


def _path() -> str:
    import os

    return os.environ.get("PATH", "")


def _adapt(code: str) -> str:
    for folder, package in MODULES.items():
        module = folder.replace("/", ".")
        code = re.sub(rf"^from {re.escape(module)} import", f"from mcprun.protocol.{package} import", code, flags=re.MULTILINE)
        code = re.sub(rf"(?<![\w.]){re.escape(module)}\.(\w+_pb2)", rf"mcprun.protocol.{package}.\1", code)
        code = re.sub(rf"^import {re.escape(module)}\.(\w+)$", rf"import mcprun.protocol.{package}.\1", code, flags=re.MULTILINE)
    if DEFAULT_POOL in code:
        code = code.replace(DEFAULT_POOL, "_POOL")
        code = code.replace(
            "from google.protobuf import descriptor_pool as _descriptor_pool", "from mcprun.descriptors import POOL as _POOL"
        )
    return code


if __name__ == "__main__":
    generate(OUT)
