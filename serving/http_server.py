"""What every HTTP process of serving needs: a bound socket, TLS, and a server without signals."""

import contextlib
import gc
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from tendril.settings import AccessSettings


class Server(uvicorn.Server):
    """Leaves signals to the process that runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def freeze_heap() -> None:
    """Take what start-up left out of the garbage collector's sight: looking through all of it again
    stops a process that holds an engine for half a second.
    """
    gc.collect()
    gc.freeze()


def bound_socket(host: str, port: int, setting: str) -> socket.socket:
    """A socket with that address, before anything is loaded; raises `OSError` with the cure.

    It does not listen yet: clients are turned away, not kept waiting, while a model loads.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise OSError(
            error.errno,
            f"cannot listen on {host}:{port}: {error.strerror}. Stop what holds the port, or set "
            f"{setting} to another",
        ) from error
    return bound


def tls_options(access: AccessSettings) -> dict[str, Any]:
    """Arguments of `uvicorn.Config` for HTTPS; none where the settings name no certificate."""
    if access.tls_certificate is None or access.tls_key is None:
        return {}
    return {"ssl_certfile": access.tls_certificate, "ssl_keyfile": access.tls_key}
