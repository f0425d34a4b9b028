"""`python -m tendril_editor`: the language server over stdio. The key is in `TENDRIL_API_KEY`."""

import argparse
import os
from pathlib import Path

from tendril_client import AsyncTendril
from tendril_editor.server import TendrilServer


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tendril_editor", description=__doc__)
    parser.add_argument("--base-url", required=True, help="Tendril's address, with /v1")
    parser.add_argument("--model", default="tendril")
    parser.add_argument("--user", help="who writes; the service keeps a keyed hash of it")
    parser.add_argument("--outbox", type=Path, help="file for events not yet delivered")
    parser.add_argument("--max-tokens", type=int, default=32)
    return parser


def build_server(arguments: argparse.Namespace) -> TendrilServer:
    tendril = AsyncTendril(
        arguments.base_url,
        os.environ.get("TENDRIL_API_KEY", "none"),
        user=arguments.user,
        outbox=arguments.outbox,
    )
    return TendrilServer(tendril, arguments.model, max_tokens=arguments.max_tokens)


def main() -> None:
    build_server(build_parser().parse_args()).lsp.start_io()


if __name__ == "__main__":
    main()
