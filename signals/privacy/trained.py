"""Which policy versions were trained on a user's episodes: named, as they cannot unlearn."""

from collections.abc import Iterable, Mapping

from tendril.records import Episode, PolicyManifest


def trained_on(
    episodes: Iterable[tuple[str, int, Episode]], manifests: Mapping[int, PolicyManifest]
) -> frozenset[int]:
    """Versions whose training had read one of these (place as in a manifest, offset, episode).

    Each version inherits what its ancestors learned. What the learner drops for the episode's own
    sake does not count; what it dropped for another reason does: rather one version too many.
    """
    read = [(place, offset) for place, offset, episode in episodes if _is_trainable(episode)]
    return frozenset(
        version
        for version, manifest in manifests.items()
        if any(offset < manifest.trained_offsets.get(place, 0) for place, offset in read)
    )


def _is_trainable(episode: Episode) -> bool:
    return (
        episode.train_consent
        and not episode.held_out
        and episode.untrainable is None
        and episode.reward is not None
        and episode.weight > 0
    )
