"""What `tendril up` says while it runs: when it serves, and where, and which process ended."""

import time
from collections.abc import Callable

import httpx

from tendril.cli.supervisor import Child, Supervisor
from tendril.settings import Settings

PROBE_EVERY_S, PROBE_TIMEOUT_S = 0.5, 0.5
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class Announcer:
    """Call `look` often."""

    def __init__(
        self,
        settings: Settings,
        supervisor: Supervisor,
        *,
        say: Callable[[str], None] = lambda line: print(line, flush=True),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings, self._supervisor, self._say = settings, supervisor, say
        self._monotonic = monotonic
        self._started_at = self._next_probe = monotonic()
        self._is_ready = False
        self._told: dict[str, int] = {}

    def look(self) -> None:
        """Say what is new since the last look."""
        for child in self._supervisor.children():
            if child.restarts > self._told.get(child.name, 0):
                self._told[child.name] = child.restarts
                if child.restarts.bit_count() == 1:  # the 1st, 2nd, 4th, 8th time: no flood
                    self._say(self._ended(child))
        if not self._is_ready and self._monotonic() >= self._next_probe:
            self._is_ready = answers(self._settings)
            self._next_probe = self._monotonic() + PROBE_EVERY_S
            if self._is_ready:
                self._say(self._ready())

    def _ended(self, child: Child) -> str:
        times = "once" if child.restarts == 1 else f"{child.restarts} times"
        return (
            f"{child.name} ended {times} and was started again; last with status "
            f"{child.last_exit}: {child.last_words} (more in {self._supervisor.log_of(child)})"
        )

    def _ready(self) -> str:
        key = self._settings.workspace / "api_key"
        return (
            f"ready after {self._monotonic() - self._started_at:.0f} s: OpenAI API on "
            f"{gateway_url(self._settings)}/v1{f', key in {key}' if key.exists() else ''}; "
            f"console on http://127.0.0.1:{self._settings.console.port}"
        )


def gateway_url(settings: Settings) -> str:
    """Where a client on this machine finds the gateway."""
    scheme = "https" if settings.access.tls_certificate else "http"
    host = EVERYWHERE.get(settings.gateway.host, settings.gateway.host)
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{settings.gateway.port}"


def answers(settings: Settings) -> bool:
    """Whether requests are served now."""
    try:
        # Its own certificate may name another host than this machine's loopback.
        reply = httpx.get(
            f"{gateway_url(settings)}/ready", timeout=PROBE_TIMEOUT_S, verify=False, trust_env=False
        )
    except httpx.HTTPError:
        return False
    return reply.status_code == httpx.codes.OK
