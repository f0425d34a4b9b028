"""All detectors, in the order of the specification: one window in, findings out."""

from collections.abc import Callable, Container, Mapping

from signals.trust.bots import bots
from signals.trust.bursts import bursts, vote_rates
from signals.trust.cohorts import FIGURE, cohorts, dispersion
from signals.trust.drift import divergence, missing_components, style, undos, volume
from signals.trust.duplicates import duplicates
from signals.trust.experiments import propensities, sample_ratio
from signals.trust.figures import figures_of, values_of
from signals.trust.finding import Finding
from signals.trust.graders import graders
from signals.trust.influence import influence, young_accounts
from signals.trust.injection import injections
from signals.trust.join_health import join_health, shares_of
from signals.trust.schema_drift import schema_drift
from signals.trust.window import History, Window, remembered

Detector = Callable[[Window], list[Finding]]
DETECTORS: Mapping[str, Detector] = {
    detector.__name__: detector
    for detector in (
        influence, young_accounts, bots, duplicates, bursts, divergence, volume, style, undos,
        cohorts, graders, missing_components, join_health, sample_ratio, propensities,
        schema_drift, injections,
    )
}  # fmt: skip


def detect(window: Window, *, off: Container[str] = ()) -> list[Finding]:
    """What every detector that is not `off` finds in the window."""
    return [
        finding
        for name, detector in DETECTORS.items()
        if name not in off
        for finding in detector(window)
    ]


def remember(window: Window) -> History:
    """The history for the next window. Leave out a window that was found bad, or it gets usual."""
    figures = values_of(figures_of(window.traces)) | vote_rates(window)
    figures |= {name: share for name, (share, _) in shares_of(window.ledger).items()}
    figures[FIGURE] = dispersion(window.traces.reward, window.traces.account)[0]
    return remembered(window.history, figures)
