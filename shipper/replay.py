"""The held-out decisions that a candidate is judged on: the newest, one revision each.

The log is the memory. A restarted shipper reads again from `safe_offsets`, the oldest episode kept.
"""

from typing import NamedTuple

from tendril.log import LogRecord, Offsets, TopicPartition
from tendril.records import Episode


class Kept(NamedTuple):
    place: TopicPartition
    offset: int
    episode: Episode


class ReplaySet:
    """At most `max_episodes` episodes, in log order."""

    def __init__(self, max_episodes: int) -> None:
        self._max_episodes = max_episodes
        self._kept: dict[str, Kept] = {}
        self._next: dict[TopicPartition, int] = {}

    def add(self, record: LogRecord, episode: Episode) -> None:
        """Take in the next record of the topic, whether or not it is of use here."""
        place = TopicPartition(record.topic, record.partition)
        self._next[place] = record.offset + 1
        if episode.supersedes is not None:
            self._kept.pop(episode.supersedes, None)
        self._kept.pop(episode.episode_id, None)
        if is_replayable(episode):
            self._kept[episode.episode_id] = Kept(place, record.offset, episode)
            if len(self._kept) > self._max_episodes:
                del self._kept[next(iter(self._kept))]

    @property
    def episodes(self) -> list[Episode]:
        return [kept.episode for kept in self._kept.values()]

    def safe_offsets(self) -> Offsets:
        """Where reading must start so that nothing kept is lost."""
        safe = dict(self._next)
        for kept in self._kept.values():
            safe[kept.place] = min(safe[kept.place], kept.offset)
        return safe


def is_replayable(episode: Episode) -> bool:
    """Whether its value under another policy can be estimated, and may be."""
    return (
        episode.held_out
        and episode.lane == "online"
        and episode.reward is not None
        and episode.train_consent
        and not episode.quarantine_ids
        and episode.untrainable is None
        and bool(episode.segments)
        and all(segment.is_sound for segment in episode.segments)
    )
