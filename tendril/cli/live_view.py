"""The loop in a terminal: about 30 lines, 80 columns or more, redrawn by `rich.live.Live`."""

from collections.abc import Callable, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dashboards.snapshot import LedgerLine, LoopSnapshot, VersionView
from dashboards.tally import Rates

NONE = "\N{EN DASH}"
BLOCKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 30
MAX_VERSIONS = 7
MAX_PROBLEMS = 2
LEVEL_STYLE = {
    "healthy": "bold green",
    "degraded": "bold yellow",
    "failing": "bold red",
    "waiting": "bold",
    "fresh": "green",
    "late": "yellow",
    "stale": "red",
    "none": "dim",
}
STATE_STYLE = {"gate_held": "yellow", "rolled_back": "red", "quarantined": "red"}


def render(
    snapshot: LoopSnapshot,
    *,
    title: str = "tendril",
    elapsed_s: float | None = None,
    total_s: float | None = None,
    urls: Mapping[str, str] | None = None,
    command: str | None = None,
) -> RenderableType:
    """The view of one moment; `total_s` shows how far `elapsed_s` has come, `urls` by name.

    `command` stands below, whole: it is there to be copied.
    """
    body = Group(
        _status(snapshot),
        Text(),
        _rates(snapshot),
        Text(),
        _stages(snapshot),
        Text(),
        _versions(snapshot),
        _shipping(snapshot),
        Text(),
        _ledger(snapshot),
    )
    links = "  ".join(f"{name} {url}" for name, url in (urls or {}).items())
    panel = Panel(
        body,
        title=Text(title + _clock(elapsed_s, total_s), style="bold"),
        title_align="left",
        subtitle=Text(links, style="dim") if links else None,
        subtitle_align="left",
        border_style="dim",
    )
    return Group(panel, Text(command, overflow="fold")) if command else panel


def sparkline(
    values: Sequence[float | None], weights: Sequence[int], width: int = SPARK_WIDTH
) -> str:
    """All `values` as at most `width` blocks, lowest to highest; unknown ones are blank.

    Where several share a block, it is their mean weighted by `weights`.
    """
    size = max(1, -(-len(values) // width))
    shown = [
        _weighted_mean(values[start : start + size], weights[start : start + size])
        for start in range(0, len(values), size)
    ]
    known = [value for value in shown if value is not None]
    if not known:
        return ""
    low, high = min(known), max(known)
    scale = (len(BLOCKS) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if v is None else BLOCKS[round((v - low) * scale)] for v in shown)


def _weighted_mean(values: Sequence[float | None], weights: Sequence[int]) -> float | None:
    pairs = [(v, max(w, 1)) for v, w in zip(values, weights, strict=True) if v is not None]
    return sum(v * w for v, w in pairs) / sum(w for _, w in pairs) if pairs else None


def _status(snapshot: LoopSnapshot) -> RenderableType:
    health, traffic = snapshot.health, snapshot.traffic
    line = Text.assemble(
        (f"● {health.level}", LEVEL_STYLE[health.level]),
        f"  live {_version(snapshot.live_version)}  newest {_version(snapshot.newest_version)}",
        f"  {traffic.per_second:.1f}/s  {traffic.num_decisions:,} decisions  ",
        (f"{traffic.num_failed:,} failed", "bold red" if traffic.num_failed else "green"),
    )
    rest = len(health.problems) - MAX_PROBLEMS
    problems = [Text(f"  {problem}", style="yellow") for problem in health.problems[:MAX_PROBLEMS]]
    if rest > 0:
        problems.append(Text(f"  and {rest} more", style="yellow"))
    return Group(line, *problems)


def _rates(snapshot: LoopSnapshot) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True, justify="right")
    table.add_column(no_wrap=True)
    table.add_row(
        Text("users", style="bold"),
        Text(_version(snapshot.live_version) + " now", style="dim"),
        Text(f"{_version(snapshot.base_version)} first", style="dim"),
        Text("over time", style="dim"),
    )
    live, curves = snapshot.live or snapshot.total, snapshot.curves
    rows: list[tuple[str, Callable[[Rates], str], Sequence[float | None]]] = [
        ("acceptance of shown", lambda r: _percent(r.acceptance), curves.acceptance),
        ("shown per decision", lambda r: _percent(r.shown_rate), curves.shown_rate),
        (
            "reward per decision",
            lambda r: _signed(r.reward_per_decision),
            curves.reward_per_decision,
        ),
        (
            "accepted bytes/decision",
            lambda r: _number(r.accepted_bytes_per_decision, 2),
            curves.accepted_bytes_per_decision,
        ),
    ]
    for label, words, values in rows:
        base = Text(words(snapshot.base) if snapshot.base else NONE, style="dim")
        table.add_row(
            label,
            Text(words(live), style="bold"),
            base,
            Text(sparkline(values, curves.num_decisions), style="cyan"),
        )
    return table


def _stages(snapshot: LoopSnapshot) -> RenderableType:
    line = Text("newest  ", style="bold")
    for stage in snapshot.stages:
        line.append(f"{stage.name} ", style="dim")
        line.append(f"{_age(stage.age_s)}  ", style=LEVEL_STYLE[stage.level])
    return line


def _versions(snapshot: LoopSnapshot) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column("version", no_wrap=True)
    table.add_column("state", no_wrap=True)
    table.add_column("gate", ratio=1)  # the one column that gives way
    for name in ("delta", "ratio", "pause ms", "accept", "reward"):
        table.add_column(name, justify="right", no_wrap=True)
    for view in snapshot.versions[:MAX_VERSIONS]:
        style = "bold green" if view.live else STATE_STYLE.get(view.state, "")
        rates = view.rates
        table.add_row(
            _version(view.policy_version),
            Text("live" if view.live else view.state.replace("_", " "), style=style),
            _gate(view),
            _bytes(view.delta_bytes),
            NONE if view.delta_ratio is None else f"{view.delta_ratio:.1f}x",
            _number(view.swap_pause_ms, 1),
            _percent(rates.acceptance),
            _signed(rates.reward_per_decision),
        )
    if not snapshot.versions:
        table.add_row(Text("no version yet", style="dim"))
    return table


def _gate(view: VersionView) -> Text:
    match view.verdict:
        case None:
            return Text("base" if view.parent is None else NONE, style="dim")
        case "pass":
            return Text("pass", style="green")
        case verdict:
            checks = (check for check in view.checks if check.verdict != "pass")
            words = ", ".join(
                f"{c.name} {c.verdict} {_number(c.value, 3)}/{c.limit:g}" for c in checks
            )
            style = "red" if verdict == "fail" else "yellow"
            return Text(words, style=style, no_wrap=True, overflow="ellipsis")


def _shipping(snapshot: LoopSnapshot) -> RenderableType:
    counts, pause = snapshot.counts, snapshot.swap_pause_ms
    served, ratio = snapshot.feedback_to_served_s, snapshot.delta_ratio
    return Text.assemble(
        f"{counts.shipped} shipped, {counts.held} held, {counts.rolled_back} rolled back",
        ("   delta ", "dim"),
        NONE if ratio.p50 is None else f"{ratio.p50:.1f}x smaller",
        ("\nswap pause p50 ", "dim"),
        f"{_number(pause.p50, 1)} ms",
        (", p99 ", "dim"),
        f"{_number(pause.p99, 1)} ms",
        ("   feedback to served p50 ", "dim"),
        f"{_number(served.p50, 0)} s",
        (", p90 ", "dim"),
        f"{_number(served.p90, 0)} s",
    )


def _ledger(snapshot: LoopSnapshot) -> RenderableType:
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column()
    words = {None: ("no report yet", "dim"), True: ("balanced", "green"), False: ("OFF", "red")}
    text, style = words[snapshot.ledger_balanced]
    table.add_row(Text("accounting", style="bold"), Text(text, style=style))
    for line in snapshot.ledger:
        mark = Text("=", style="green") if line.balanced else Text("≠", style="bold red")
        table.add_row(f"{line.process} {line.kind}", f"{line.read:,} read", mark, _outcomes(line))
    return table


def _outcomes(line: LedgerLine) -> Text:
    largest_first = sorted(line.outcomes.items(), key=lambda item: -item[1])
    words = " + ".join(f"{n:,} {name.replace('_', ' ')}" for name, n in largest_first if n)
    return Text(words or NONE, no_wrap=True, overflow="ellipsis")


def _clock(elapsed_s: float | None, total_s: float | None) -> str:
    if elapsed_s is None:
        return ""
    of_total = "" if total_s is None else f" of {_minutes(total_s)}"
    return f"  {_minutes(elapsed_s)}{of_total}"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _age(seconds: float | None) -> str:
    if seconds is None:
        return "none"
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"


def _version(version: int | None) -> str:
    return NONE if version is None else f"v{version}"


def _number(value: float | None, digits: int) -> str:
    return NONE if value is None else f"{value:,.{digits}f}"


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.1f} %"


def _signed(value: float | None) -> str:
    return NONE if value is None else f"{value:+.3f}"


def _bytes(value: int | None) -> str:
    if value is None:
        return NONE
    return f"{value / 1e6:.2f} MB" if value >= 1e6 else f"{value / 1e3:.1f} kB"
