"""REST calls of a running mesh."""

import ssl
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import httpx

from mcprun.cli.failure import CommandFailed, ExitCode
from mcprun.supervisor.state import RunLock, RunState
from mcprun.workspace import DATA_FOLDER

DEFAULT_URL = "http://127.0.0.1:8080"


def find_url(url: str | None, folder: Path) -> str:
    """The URL that was named, else that of the mesh which runs in this folder, else the default one."""
    if url:
        return url if "://" in url else f"http://{url}"
    state = running(folder)
    return state.url if state else DEFAULT_URL


def running(folder: Path) -> RunState | None:
    """The mesh that runs in this folder; None when none does."""
    data = folder / DATA_FOLDER
    state = RunState.read(data / "run.json")
    # A state whose lock nobody holds is left over from a supervisor that was killed.
    return state if state and RunLock(data / "run.lock").held else None


class MeshClient:
    """One mesh at a URL. Every call raises CommandFailed when there is no good answer."""

    def __init__(self, url: str, *, seconds: float = 60.0) -> None:
        self.url = url.rstrip("/")
        # Certificates take longer to load than a whole call to this machine takes.
        verify: ssl.SSLContext | bool = True if self.url.startswith("https:") else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            self._http = httpx.Client(base_url=self.url, timeout=httpx.Timeout(seconds, connect=5.0), trust_env=False, verify=verify)
        except httpx.InvalidURL as error:
            raise CommandFailed(ExitCode.USAGE, f"{url!r} is no URL: {error}") from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._http.close()

    def ready(self) -> bool:
        """Whether the mesh is ready. Only raises when nothing answers."""
        return self._send("GET", "/v2/health/ready").status_code == httpx.codes.OK

    def health(self) -> dict[str, Any]:
        """What each part of the mesh says of itself; empty when the mesh does not tell."""
        answer = self._send("GET", "/v1/health")
        try:
            parts = answer.json()
        except ValueError:
            return {}
        return parts if isinstance(parts, dict) else {}

    def index(self) -> list[dict[str, Any]]:
        """Each model version, with its state."""
        models = self._call("POST", "/v2/repository/index", json={})
        return models if isinstance(models, list) else []

    def metadata(self, model: str, version: str | None) -> dict[str, Any]:
        """A model's inputs and outputs."""
        metadata = self._call("GET", _model_path(model, version))
        return metadata if isinstance(metadata, dict) else {}

    def load(self, model: str) -> None:
        """Loads a model, and returns once it is warm."""
        self._call("POST", f"/v2/repository/models/{quote(model, safe='')}/load", json={})

    def unload(self, model: str) -> None:
        """Unloads a model."""
        self._call("POST", f"/v2/repository/models/{quote(model, safe='')}/unload", json={})

    def infer(self, model: str, version: str | None, *, body: bytes, json_size: int | None, headers: dict[str, str]) -> dict[str, Any]:
        """One inference. `json_size` is the length of the JSON in `body` when raw tensors follow it."""
        more = {"content-type": "application/json"}
        if json_size is not None:
            more = {"content-type": "application/octet-stream", "inference-header-content-length": str(json_size)}
        answer = self._call("POST", f"{_model_path(model, version)}/infer", content=body, headers={**headers, **more})
        return answer if isinstance(answer, dict) else {}

    def _call(self, method: str, path: str, **arguments: Any) -> Any:
        answer = self._send(method, path, **arguments)
        try:
            value = answer.json() if answer.content else None
        except ValueError:
            value = None
        if answer.is_success:
            return value
        message = value.get("error") if isinstance(value, dict) else None
        if isinstance(message, dict):
            message = message.get("message")
        raise CommandFailed(ExitCode.FAILED, str(message or answer.text.strip() or f"the mesh answered {answer.status_code}"))

    def _send(self, method: str, path: str, **arguments: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **arguments)
        except httpx.ConnectError as error:
            raise CommandFailed(
                ExitCode.UNREACHABLE,
                f"no mesh answers at {self.url}: {error}",
                "Start one with `mcprun serve`, or name another with --url.",
            ) from error
        except httpx.TimeoutException as error:
            raise CommandFailed(ExitCode.FAILED, f"the mesh at {self.url} did not answer in time") from error
        except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise CommandFailed(ExitCode.UNREACHABLE, f"the mesh at {self.url} cannot be talked to: {error}") from error


def _model_path(model: str, version: str | None) -> str:
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path
