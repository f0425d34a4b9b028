"""The node agent as a process. It never loads torch, so it stays small beside the engine."""

import logging
import threading

from shipper.engine_client import EngineClient
from shipper.node_agent import MAX_RETRY_S, NodeAgent
from shipper.store import WeightStore
from tendril.files import sole_user
from tendril.log import open_log
from tendril.settings import Settings
from tendril.telemetry import setup

logger = logging.getLogger(__name__)
TICK_S = 0.2


def run(settings: Settings, stop: threading.Event) -> None:
    """Tick until `stop` is set."""
    shipping = settings.shipping
    log = open_log(settings)
    telemetry = setup("agent", settings.telemetry)
    engine = EngineClient(f"http://127.0.0.1:{settings.serving.admin_port}")
    store, folder = WeightStore(settings.path(shipping.store)), settings.path(shipping.node_folder)
    try:
        with sole_user(folder, "shipping.node_folder"):
            agent = NodeAgent(store, log, engine, folder, shipping, telemetry)
            _tick_until(agent, stop)
    finally:
        engine.close()
        telemetry.shutdown()
        log.close()


def _tick_until(agent: NodeAgent, stop: threading.Event) -> None:
    while not stop.wait(TICK_S):
        try:
            agent.tick()
        except Exception:  # the engine serves on; dying would only delay the next try
            logger.exception("node agent: tick failed")
            stop.wait(MAX_RETRY_S)
