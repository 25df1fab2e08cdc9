"""Who listens where."""

import errno
import socket
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that listens at a port."""

    pid: int
    name: str
    command: str
    """Its command line, cut short."""

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"


def obstacle(host: str, port: int) -> str | None:
    """Why nothing can listen at this address, None when something can. Port 0 stands for any free one."""
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        return f"{host} is no address of this machine: {error.strerror}"
    family, kind, protocol, _, address = addresses[0]
    with socket.socket(family, kind, protocol) as probe:
        # As Envoy does, so that connections of an earlier run that linger do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
            probe.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                owner = find_owner(port)
                return f"port {port} is taken by {owner if owner else 'another process, which this user may not see'}"
            if error.errno == errno.EACCES:
                return f"port {port} needs more rights than this user has; ports from 1024 on do not"
            return f"{host}:{port} cannot be used: {error.strerror}"
    return None


def find_owner(port: int) -> Owner | None:
    """Who listens at a TCP port of this machine, None when nobody does or when this user may not know."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except psutil.AccessDenied:
        return None
    for connection in connections:
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port and connection.pid:
            try:
                process = psutil.Process(connection.pid)
                return Owner(process.pid, process.name(), " ".join(process.cmdline())[:200])
            except psutil.Error:
                return None
    return None


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens at now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def listening_port(pid: int) -> int | None:
    """The lowest TCP port that a process listens at; None when there is none, or when the process is gone."""
    try:
        connections = psutil.Process(pid).net_connections(kind="tcp")
    except psutil.Error:
        return None
    ports = [connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN and connection.laddr]
    return min(ports, default=None)
