"""compose.yaml and what it mounts: valid, pinned, loopback only, and about metrics that exist."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose
from typer.main import get_command

from tendril.cli.__main__ import app
from tendril.settings import Settings, load_settings
from tendril.telemetry import METRICS, Metric

ROOT = Path(__file__).parent.parent
MOUNTED = ROOT / "dashboards" / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
GROUPS = ("live", "canary")
NEEDS_PROMTOOL = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian package prometheus) is not installed"
)


def test_the_file_is_valid_compose_and_names_only_what_it_declares() -> None:
    parsed = PyCompose.from_json(json.dumps(COMPOSE))
    parsed.validate()
    used = {v.split(":")[0] for s in SERVICES.values() for v in s.get("volumes", [])}
    assert {name for name in used if not name.startswith(".")} == set(COMPOSE["volumes"])
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)


def test_the_whole_loop_and_its_instruments_are_there_and_only_the_rest_is_optional() -> None:
    always = {"gateway", "node-1", "agent", "signals", "learner", "shipper", "console"}
    always |= {"collector", "prometheus", "grafana"}
    optional = {
        "torch": {"serving"},
        "vllm": {"vllm"},
        "second": {"node-2", "serving-2", "agent-2"},
        "canary": {"node-canary", "serving-canary", "agent-canary"},
        "kafka": {"kafka"},
    }
    assert running(set()) == always
    assert {p: running({p}) - always for p in optional} == optional
    assert set(SERVICES) == always.union(*optional.values())


def running(profiles: set[str]) -> set[str]:
    """Services that run with these profiles."""
    return {
        name
        for name, service in SERVICES.items()
        if profiles & set(service.get("profiles", [])) or "profiles" not in service
    }


def examples() -> list[dict[str, str]]:
    """What `.env` sets, and what each commented example of it sets instead."""
    blocks = (ROOT / ".env").read_text().split("\n\n")[1:]
    found = [dict(re.findall(r"^#?([A-Z_]+)='?(.*?)'?$", b, re.MULTILINE)) for b in blocks]
    return [found[0] | example for example in found]


@pytest.mark.parametrize("example", examples(), ids=lambda example: example["COMPOSE_PROFILES"])
def test_every_example_routes_to_the_nodes_that_run_and_no_two_nodes_collide(
    example: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    services = running(set(example["COMPOSE_PROFILES"].split(",")))
    nodes = {name for name in services if name.startswith("node-")}
    settings = {
        name: settings_of(name, example, monkeypatch)
        for name in services
        if SERVICES[name]["image"].startswith("tendril")
    }
    gateway = settings["gateway"].gateway
    port = Settings().serving.port
    assert {replica.url for replica in gateway.replicas} == {f"http://{n}:{port}" for n in nodes}
    groups = {replica.group for replica in gateway.replicas}
    assert (gateway.canary_share > 0) == ("canary" in groups)
    names, folders = [], []
    for node in nodes:
        inside = {n for n in services if SERVICES[n].get("network_mode") == f"service:{node}"}
        engine, agent = sorted(inside, key=lambda n: SERVICES[n]["command"], reverse=True)
        assert (SERVICES[engine]["command"], SERVICES[agent]["command"]) == (["serve"], ["agent"])
        assert settings[engine].shipping == settings[agent].shipping
        names.append(settings[engine].shipping.node)
        folders += [settings[engine].shipping.node_folder, settings[engine].serving.folder]
    assert len(set(names)) == len(nodes)
    assert len(set(folders)) == 2 * len(nodes)


def settings_of(name: str, example: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What a service of ours reads from its environment; a wrong or unknown name raises."""
    with monkeypatch.context() as patch:
        for variable, value in SERVICES[name].get("environment", {}).items():
            default = str(value).partition(":-")[2].rstrip("}")
            is_open = value is None or "${" in str(value)
            patch.setenv(variable, example.get(variable, default) if is_open else str(value))
        return load_settings(None)


@pytest.mark.parametrize("example", examples(), ids=lambda example: example["COMPOSE_PROFILES"])
def test_all_of_ours_read_one_log_and_its_broker_runs_exactly_where_that_is_kafka(
    example: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    services = running(set(example["COMPOSE_PROFILES"].split(",")))
    ours = {name for name in services if SERVICES[name]["image"].startswith("tendril")}
    logs = {settings_of(name, example, monkeypatch).log for name in ours}
    [log] = logs
    assert (log.kind == "kafka") == ("kafka" in services)
    broker = SERVICES["kafka"]["environment"]
    advertised = re.findall(r"\w+://(kafka:\d+)", broker["KAFKA_ADVERTISED_LISTENERS"])
    assert list(log.kafka.servers) == advertised
    assert log.kafka.replication_factor == 1


def test_without_examples_the_log_is_kafka_and_one_example_has_the_embedded_one() -> None:
    kinds = [example["TENDRIL_LOG__KIND"] for example in examples()]
    assert kinds[0] == "kafka"
    assert kinds.count("sqlite") == 1


def test_the_broker_is_one_node_of_kraft_that_keeps_its_data() -> None:
    broker, environment = SERVICES["kafka"], SERVICES["kafka"]["environment"]
    assert set(environment["KAFKA_PROCESS_ROLES"].split(",")) == {"broker", "controller"}
    listeners = dict(re.findall(r"(\w+)://:(\d+)", environment["KAFKA_LISTENERS"]))
    controller = environment["KAFKA_CONTROLLER_LISTENER_NAMES"]
    node = environment["KAFKA_NODE_ID"]
    assert environment["KAFKA_CONTROLLER_QUORUM_VOTERS"] == f"{node}@kafka:{listeners[controller]}"
    protocols = environment["KAFKA_LISTENER_SECURITY_PROTOCOL_MAP"].split(",")
    assert {protocol.split(":")[0] for protocol in protocols} == set(listeners)
    assert f"kafka:{environment['KAFKA_LOG_DIRS']}" in broker["volumes"]
    assert not any(name.startswith("KAFKA_ZOOKEEPER") for name in environment)


def test_the_image_can_speak_to_kafka() -> None:
    [extras] = re.findall(r'"\.\[([a-z]+)\$', (ROOT / "Dockerfile").read_text())
    assert extras == "kafka"
    assert extras in known_extras()


def test_vllm_gets_the_gpus_and_an_image_that_has_it() -> None:
    vllm = SERVICES["vllm"]
    [device] = vllm["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
    assert vllm["build"]["args"]["EXTRA"] in known_extras()
    assert vllm["image"] != SERVICES["serving"]["image"]
    assert vllm["environment"]["TENDRIL_SERVING__ENGINE"] == "vllm"


def known_extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return set(project["optional-dependencies"])


def test_our_commands_are_commands_of_tendril() -> None:
    known = get_command(app).commands  # type: ignore[attr-defined]
    for name, service in SERVICES.items():
        if service["image"].startswith("tendril") and "entrypoint" not in service:
            command, *options = service["command"]
            flags = {flag for parameter in known[command].params for flag in parameter.opts}
            assert set(options) <= flags, name


def test_every_image_is_pinned_to_a_full_version() -> None:
    [base] = re.findall(r"^FROM (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for image in [base, *(service["image"] for service in SERVICES.values())]:
        assert re.fullmatch(r"[a-z/-]+:v?\d+\.\d+\.\d+(-[a-z-]+)?", image), image


def test_every_published_port_is_on_loopback_and_has_a_health_check() -> None:
    for name, service in SERVICES.items():
        ports = service.get("ports", [])
        assert all(re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port) for port in ports), name
        # The collector's image holds nothing that could check it; Prometheus does.
        assert "healthcheck" in service or not ports or name == "collector", name


def test_every_mounted_file_exists_and_parses() -> None:
    mounts = [v for s in SERVICES.values() for v in s.get("volumes", []) if v.startswith("./")]
    assert len(mounts) == 5
    assert all((ROOT / mount.split(":")[0]).exists() for mount in mounts)
    for file in [*MOUNTED.rglob("*.yml"), *MOUNTED.rglob("*.yaml")]:
        assert yaml.safe_load(file.read_text()), file
    collector = yaml.safe_load((MOUNTED / "otel-collector.yaml").read_text())
    for pipeline in collector["service"]["pipelines"].values():
        for kind, names in pipeline.items():
            assert set(names) <= set(collector[kind])


def test_the_image_copies_every_package_that_the_distribution_has() -> None:
    copied = set(re.findall(r"^COPY (\w+) \1$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    not_installed = {"tests", "benchmarks"}
    assert copied == {file.parent.name for file in ROOT.glob("*/__init__.py")} - not_installed


def prometheus_names(metric: Metric) -> set[str]:
    """What a metric is called after the collector: units and `total` become suffixes."""
    unit = {"s": "_seconds", "ms": "_milliseconds", "By": "_bytes"}.get(metric.unit, "")
    name = metric.name.replace(".", "_") + unit
    if metric.kind == "histogram":
        return {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return {f"{name}_total" if metric.kind == "counter" else name}


def test_dashboard_and_alerts_ask_only_for_metrics_that_exist() -> None:
    known = {name for metric in METRICS for name in prometheus_names(metric)}
    assert "tendril_serving_decisions_total" in known
    assert "tendril_shipper_swap_pause_milliseconds_bucket" in known
    asked = dashboard_expressions()
    rules = yaml.safe_load((MOUNTED / "alerts.yml").read_text())["groups"][0]["rules"]
    asked += [rule["expr"] for rule in rules]
    names = {n for expr in asked for n in re.findall(r"\b(?:tendril|gen_ai)_[a-z_]+", expr)}
    assert names <= known
    assert len(names) > 15


def dashboard_expressions() -> list[str]:
    dashboard = json.loads((MOUNTED / "grafana" / "dashboards" / "loop.json").read_text())
    return [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])]


def test_the_dashboard_shows_every_metric_and_its_panels_do_not_overlap() -> None:
    asked = " ".join(dashboard_expressions())
    unseen = {m.name for m in METRICS if not any(n in asked for n in prometheus_names(m))}
    assert unseen == set()
    dashboard = json.loads((MOUNTED / "grafana" / "dashboards" / "loop.json").read_text())
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y)
        for p in places
        for x in range(p["x"], p["x"] + p["w"])
        for y in range(p["y"], p["y"] + p["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(places)


@NEEDS_PROMTOOL
def test_prometheus_can_parse_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{i}", "expr": e} for i, e in enumerate(dashboard_expressions())]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))
    command = ["promtool", "check", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@NEEDS_PROMTOOL
def test_prometheus_accepts_its_configuration_and_the_alerts() -> None:
    command = ["promtool", "check", "config", str(MOUNTED / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "11 rules found" in done.stdout


@NEEDS_PROMTOOL
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    serving = 'tendril_process_started_seconds{job="tendril/serving"}'
    decisions = 'tendril_serving_decisions_total{job="tendril/serving"}'
    simulated = 'tendril_serving_decisions_total{job="tendril/serving",lane="offline"}'
    imbalance = 'tendril_ledger_imbalance{job="tendril/signals",kind="traces"}'
    tests = [
        alert_case("NoDecisions", True, {serving: "0x30"}),
        alert_case("NoDecisions", True, {serving: "0x30", decisions: "5x30"}),
        alert_case("NoDecisions", False, {serving: "0x30", decisions: "5+3x30"}),
        alert_case("NoDecisions", False, {decisions: "5x30"}),
        alert_case("NoDecisions", True, {serving: "0x30", simulated: "5+3x30"}),
        alert_case("LedgerUnbalanced", True, {imbalance: "-1x30"}),
        alert_case("LedgerUnbalanced", False, {imbalance: "0x30"}),
        *gateway_cases(),
        *node_cases(),
    ]
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(MOUNTED / "alerts.yml")], "tests": tests}))
    command = ["promtool", "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def gateway_cases() -> list[dict[str, Any]]:
    live, canary = (f'tendril_gateway_replicas{{instance="a",group="{g}"}}' for g in GROUPS)
    other = 'tendril_gateway_replicas{instance="b",group="live"}'
    good, busy = (f'tendril_gateway_requests_total{{status="{s}"}}' for s in (200, 429))
    lost, unknown = (
        f'tendril_gateway_refused_total{{reason="{r}"}}' for r in ("no_replica", "invalid_api_key")
    )
    retries = "tendril_gateway_retries_total"
    return [
        alert_case("NoReadyReplica", True, {live: "2x10 0x20", canary: "0x30"}),
        alert_case("NoReadyReplica", True, {live: "0x30", other: "1x30"}),
        alert_case("NoReadyReplica", False, {live: "0x30", canary: "1x30"}),
        alert_case("ManyRetries", True, {good: "0+100x30", retries: "0+6x30"}),
        alert_case("ManyRetries", False, {good: "0+100x30", retries: "0+4x30"}),
        alert_case("ManyRetries", False, {good: "0+100x30"}),
        alert_case("ManyTurnedAway", True, {good: "0+97x30", busy: "0+3x30"}),
        alert_case("ManyTurnedAway", True, {lost: "0+10x30"}),
        alert_case("ManyTurnedAway", False, {good: "0+99x30", busy: "0+1x30"}),
        alert_case("ManyTurnedAway", False, {good: "0+50x30", unknown: "0+50x30"}),
    ]


def node_cases() -> list[dict[str, Any]]:
    depth, limit = (f'tendril_serving_spool_{what}{{node="node-1"}}' for what in ("depth", "limit"))
    first, second = (f'tendril_serving_policy_version{{node="node-{n}"}}' for n in (1, 2))
    released = "tendril_loop_live_version"
    return [
        alert_case("SpoolFilling", True, {limit: "100000x30", depth: "60000x30"}),
        alert_case("SpoolFilling", True, {limit: "100000x30", depth: "0+2000x30"}),
        alert_case("SpoolFilling", False, {limit: "100000x30", depth: "0+1000x30"}),
        alert_case("SpoolFilling", False, {limit: "100000x30", depth: "10000x30"}),
        alert_case("NodeOnOtherVersion", True, {released: "4x30", first: "4x30", second: "3x30"}),
        alert_case("NodeOnOtherVersion", False, {released: "4x30", first: "3x14 4x15"}),
        alert_case("NodeOnOtherVersion", False, {released: "3x14 4x15", first: "3x30"}),
        alert_case("NodeOnOtherVersion", False, {first: "3x30"}),
    ]


def alert_case(alert: str, fires: bool, series: dict[str, str]) -> dict[str, Any]:
    """A promtool case: whether `alert` fires after 20 minutes of `series`, one sample a minute."""
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    expected = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": "20m", "exp_samples": expected}],
    }
