"""Opens what the signals process needs for one partition."""

from typing import TYPE_CHECKING

from signals.decisions import Decided
from signals.extractor import Extractor
from signals.joiner import TOPICS, Joiner
from signals.lake_writer import LakeWriter
from signals.recipe import Recipe, load_recipe
from signals.review import Reviewer
from signals.schedule import Schedule
from signals.state import State
from tendril.log import EventLog
from tendril.settings import Settings

if TYPE_CHECKING:
    from tendril.lake.lake import Lake


def reviewer_of(settings: Settings, recipe: Recipe) -> Reviewer:
    """Judges by `recipe`, at the moments that the settings name."""
    signals = settings.signals
    return Reviewer(
        recipe=recipe,
        recipe_digest=recipe.digest,
        schedule=Schedule(
            revise_after_s=signals.revise_after_s,
            window_s=signals.feedback_window_s,
            lateness_s=signals.lateness_s,
        ),
        held_out_share=signals.held_out_share,
    )


class Workshop:
    """Opens what one partition needs."""

    def __init__(self, settings: Settings, log: EventLog, lake: "Lake") -> None:
        self.settings, self.log, self.lake = settings, log, lake
        self._reviewer = reviewer_of(settings, load_recipe(settings.signals.recipe))

    def open(self, partition: int, decided: Decided) -> Extractor:
        """Raises `LogUnavailable`, `LakeUnavailable`, `ValueError` for another log's state."""
        state = State(self.settings.path(self.settings.signals.folder / f"{partition}.db"))
        try:
            joiner = Joiner(
                state,
                self._reviewer,
                partition=partition,
                tenants=self.settings.privacy.tenants,
                decided=decided,
                trust=self.settings.signals.trust,
            )
            self._refuse_foreign(state, joiner)
            interval_s = self.settings.lake.commit_interval_s
            writer = LakeWriter(self.lake, partition, interval_s=interval_s)
            with state.change():
                state.outbox.start(writer.next_episode)
            return Extractor(self.log, state, joiner, writer)
        except BaseException:
            state.close()
            raise

    def _refuse_foreign(self, state: State, joiner: Joiner) -> None:
        ends = self.log.end_offsets(TOPICS)
        for place, offset in joiner.offsets().items():
            if offset > ends.get(place, 0):
                raise ValueError(
                    f"{state.path}: expected offset <= {ends.get(place, 0)} (the end of the log's "
                    f"{place.topic}), got {offset}. The log is another one or was cut; remove the "
                    f"state file to join again from the log's beginning"
                )
