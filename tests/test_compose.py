"""compose.yaml and what it mounts: valid, pinned, loopback only, and about metrics that exist."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose
from typer.main import get_command

from tendril.cli.__main__ import app
from tendril.telemetry import METRICS, Metric

ROOT = Path(__file__).parent.parent
MOUNTED = ROOT / "dashboards" / "compose"
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
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


def test_the_whole_loop_and_its_instruments_are_there_and_only_kafka_is_optional() -> None:
    ours = {"serving", "gateway", "agent", "signals", "learner", "shipper", "console"}
    assert set(SERVICES) == ours | {"kafka", "collector", "prometheus", "grafana"}
    assert [name for name, s in SERVICES.items() if "profiles" in s] == ["kafka"]


def test_our_commands_are_commands_of_tendril() -> None:
    known = get_command(app).commands  # type: ignore[attr-defined]
    for name, service in SERVICES.items():
        if service["image"].startswith("tendril:"):
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
    dashboard = json.loads((MOUNTED / "grafana" / "dashboards" / "loop.json").read_text())
    asked = [t["expr"] for panel in dashboard["panels"] for t in panel.get("targets", [])]
    rules = yaml.safe_load((MOUNTED / "alerts.yml").read_text())["groups"][0]["rules"]
    asked += [rule["expr"] for rule in rules]
    names = {n for expr in asked for n in re.findall(r"\b(?:tendril|gen_ai)_[a-z_]+", expr)}
    assert names <= known
    assert len(names) > 15


@NEEDS_PROMTOOL
def test_prometheus_accepts_its_configuration_and_the_alerts() -> None:
    command = ["promtool", "check", "config", str(MOUNTED / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "6 rules found" in done.stdout


@NEEDS_PROMTOOL
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    serving = 'tendril_process_started_seconds{job="tendril/serving"}'
    decisions = 'tendril_serving_decisions_total{job="tendril/serving"}'
    imbalance = 'tendril_ledger_imbalance{job="tendril/signals",kind="traces"}'
    tests = [
        alert_case("NoDecisions", True, {serving: "0x30"}),
        alert_case("NoDecisions", True, {serving: "0x30", decisions: "5x30"}),
        alert_case("NoDecisions", False, {serving: "0x30", decisions: "5+3x30"}),
        alert_case("NoDecisions", False, {decisions: "5x30"}),
        alert_case("LedgerUnbalanced", True, {imbalance: "-1x30"}),
        alert_case("LedgerUnbalanced", False, {imbalance: "0x30"}),
    ]
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(MOUNTED / "alerts.yml")], "tests": tests}))
    command = ["promtool", "test", "rules", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def alert_case(alert: str, fires: bool, series: dict[str, str]) -> dict[str, Any]:
    """A promtool case: whether `alert` fires after 20 minutes of `series`, one sample a minute."""
    query = f'count(ALERTS{{alertname="{alert}",alertstate="firing"}})'
    expected = [{"labels": "{}", "value": 1}] if fires else []
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": query, "eval_time": "20m", "exp_samples": expected}],
    }
