"""The life of every policy version, folded from manifests, releases and nodes' acknowledgements.

The three topics are not ordered among one another, so each fact is kept where it belongs and
the picture is made when someone looks.
"""

from collections import deque
from dataclasses import dataclass, field

from dashboards.bounded import Recent
from dashboards.snapshot import Mark, VersionCounts, VersionView
from dashboards.tally import Tally
from tendril.records import EvalReport, NodeStatus, PolicyManifest, Release

MAX_VERSIONS = 200
MAX_SWAPS = 1_000
MAX_MARKS = 200
WEIGHTS_SUFFIX = ".safetensors"


@dataclass(slots=True)
class Version:
    """What is known of one version so far."""

    policy_version: int
    manifest: PolicyManifest | None = None
    release: Release | None = None
    evidence: EvalReport | None = None
    reached: set[str] = field(default_factory=set)
    live_at: float | None = None
    swap_pause_ms: float | None = None
    fetched_delta_bytes: int | None = None
    full_bytes: int | None = None
    tally: Tally = field(default_factory=Tally)

    @property
    def trained(self) -> bool:
        """Whether the loop made it; the base model has no parent."""
        known = self.manifest is not None or bool(self.reached)
        return known and (self.manifest is None or self.manifest.parent is not None)

    def feedback_to_served_s(self) -> float | None:
        newest = self.manifest.newest_feedback_at if self.manifest else None
        return None if self.live_at is None or newest is None else self.live_at - newest

    def delta_sizes(self) -> tuple[int | None, int | None]:
        """(delta bytes, full bytes): as published, else as a node fetched them."""
        delta_bytes, full_bytes = self.fetched_delta_bytes, self.full_bytes
        if self.manifest is not None:
            weights = (f for f in self.manifest.snapshot if f.name.endswith(WEIGHTS_SUFFIX))
            full_bytes = sum(f.num_bytes for f in weights) or full_bytes
            if self.manifest.delta is not None:
                delta_bytes = self.manifest.delta.num_bytes
        return delta_bytes, full_bytes

    def view(self, live_version: int | None) -> VersionView:
        manifest, release = self.manifest, self.release
        published_at = manifest.published_at if manifest else None
        delta_bytes, full_bytes = self.delta_sizes()
        return VersionView(
            policy_version=self.policy_version,
            parent=manifest.parent if manifest else None,
            state=release.state if release else "published",
            live=self.policy_version == live_version,
            state_at=release.at if release else published_at or self.live_at or 0.0,
            reason=release.reason if release else "",
            published_at=published_at,
            live_at=self.live_at,
            verdict=self.evidence.verdict if self.evidence else None,
            checks=self.evidence.checks if self.evidence else (),
            delta_bytes=delta_bytes,
            full_bytes=full_bytes,
            delta_ratio=full_bytes / delta_bytes if full_bytes and delta_bytes else None,
            swap_pause_ms=self.swap_pause_ms,
            feedback_to_served_s=self.feedback_to_served_s(),
            num_steps=manifest.num_steps if manifest else 0,
            num_train_episodes=manifest.num_episodes if manifest else 0,
            rates=self.tally.rates(),
        )


class VersionBook:
    """Newest `MAX_VERSIONS` versions, with the oldest and the live one; counts of all."""

    def __init__(self) -> None:
        self._versions: dict[int, Version] = {}
        self._forgotten: dict[str, int] = {}
        self._seen_releases: Recent[None] = Recent(10 * MAX_VERSIONS)
        self._last_swap: dict[str, tuple[int, float]] = {}
        self._marks: deque[Mark] = deque(maxlen=MAX_MARKS)
        self.swap_pauses_ms: deque[float] = deque(maxlen=MAX_SWAPS)
        self.live_version: int | None = None
        self.live_since: float | None = None

    def tally(self, policy_version: int) -> Tally:
        return self._version(policy_version).tally

    def add_manifest(self, manifest: PolicyManifest) -> None:
        """A version may be announced again, once its delta is known: the newest one counts."""
        version = self._version(manifest.policy_version)
        version.manifest = manifest
        version.reached.add("published")

    def add_release(self, release: Release) -> None:
        if not self._seen_releases.add(
            f"{release.policy_version} {release.state} {release.at}", None
        ):
            return
        version = self._version(release.policy_version)
        version.release = release
        version.evidence = release.evidence or version.evidence
        version.reached |= {"published", release.state}
        if release.state == "promoted":
            self._serve(release.policy_version, release)
        elif release.state == "rolled_back" and release.target_version is not None:
            self._serve(release.target_version, release)

    def _serve(self, policy_version: int, release: Release) -> None:
        self.live_version, self.live_since = policy_version, release.at
        self._marks.append(
            Mark(
                at=release.at,
                policy_version=policy_version,
                kind="promoted" if release.state == "promoted" else "rolled_back",
            )
        )

    def add_status(self, status: NodeStatus) -> None:
        """An acknowledgement or a heartbeat; a repeated acknowledgement is one swap."""
        if status.state != "serving":
            return
        version = self._version(status.policy_version)
        version.live_at = min(version.live_at or status.at, status.at)
        version.full_bytes = status.full_bytes or version.full_bytes
        if status.used_delta and status.fetched_bytes:
            version.fetched_delta_bytes = status.fetched_bytes
        if status.swap_pause_ms is None:
            return
        swap = (status.policy_version, status.swap_pause_ms)
        if self._last_swap.get(status.node) != swap:
            self._last_swap[status.node] = swap
            self.swap_pauses_ms.append(status.swap_pause_ms)
            version.swap_pause_ms = max(version.swap_pause_ms or 0.0, status.swap_pause_ms)

    def _version(self, policy_version: int) -> Version:
        version = self._versions.setdefault(policy_version, Version(policy_version))
        if len(self._versions) > MAX_VERSIONS:
            self._forget_one()
        return version

    def _forget_one(self) -> None:
        oldest_first = sorted(self._versions)[1:]  # the oldest is what others are compared with
        victim = next(v for v in oldest_first if v != self.live_version)
        version = self._versions.pop(victim)
        if version.trained:
            for state in version.reached:
                self._forgotten[state] = self._forgotten.get(state, 0) + 1

    def ordered(self) -> list[Version]:
        """Oldest first."""
        return [self._versions[v] for v in sorted(self._versions)]

    def marks(self) -> tuple[Mark, ...]:
        return tuple(self._marks)

    def counts(self) -> VersionCounts:
        trained = [version.reached for version in self._versions.values() if version.trained]

        def ever(state: str) -> int:
            return sum(state in reached for reached in trained) + self._forgotten.get(state, 0)

        return VersionCounts(
            published=ever("published"),
            shipped=ever("promoted"),
            held=ever("gate_held"),
            rolled_back=ever("rolled_back"),
        )
