"""The example language server as it is, but on a clock that the test moves."""

from typing import Any

from tendril_client import AsyncTendril
from tendril_editor.__main__ import build_parser
from tendril_editor.server import TendrilServer

ADVANCE = "test/advance"


class TestClock:
    """Seconds since it was made, as the test says."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        return self.s


def main() -> None:
    arguments = build_parser().parse_args()
    clock = TestClock()
    tendril = AsyncTendril(arguments.base_url, "key", outbox=arguments.outbox)
    server = TendrilServer(tendril, arguments.model, monotonic_s=clock)

    @server.lsp.feature(ADVANCE)
    def advance(params: Any) -> None:
        clock.s += params.seconds
        server.measure_due()

    server.lsp.start_io()


if __name__ == "__main__":
    main()
