"""What a replay changes: signs, means, by component and by surface. Printed before any training."""

from collections.abc import Mapping, Sequence
from math import fsum

import msgspec

from tendril.records import Episode


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Of one slice: means over what both know."""

    num: int
    signs_changed: int
    mean_before: float | None
    mean_after: float | None


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """Published episodes against replayed ones of the same traces."""

    num_replayed: int
    num_compared: int
    """Traces that have both."""
    became_known: int
    became_unknown: int
    rewards: Change
    by_component: dict[str, Change]
    by_surface: dict[str, Change]


Pairs = Sequence[tuple[float, float]]


def compare(before: Mapping[str, Episode], replayed: Sequence[Episode]) -> Comparison:
    """`before`: by trace id, as they were published."""
    both = [(before[t], e) for e in replayed if (t := e.segments[0].trace_id) in before]
    names = sorted({name for pair in both for e in pair for name in e.components})
    buckets = sorted({new.bucket for _, new in both})
    return Comparison(
        num_replayed=len(replayed),
        num_compared=len(both),
        became_known=sum(old.reward is None and new.reward is not None for old, new in both),
        became_unknown=sum(old.reward is not None and new.reward is None for old, new in both),
        rewards=_change(_known(both)),
        by_component={
            name: _change([
                (old.components[name], new.components[name])
                for old, new in both
                if name in old.components and name in new.components
            ])
            for name in names
        },
        by_surface={
            bucket: _change(_known([pair for pair in both if pair[1].bucket == bucket]))
            for bucket in buckets
        },
    )  # fmt: skip


def _known(both: Sequence[tuple[Episode, Episode]]) -> Pairs:
    return [
        (old.reward, new.reward)
        for old, new in both
        if old.reward is not None and new.reward is not None
    ]


def _change(pairs: Pairs) -> Change:
    num = len(pairs)
    return Change(
        num=num,
        signs_changed=sum(_sign(old) != _sign(new) for old, new in pairs),
        mean_before=fsum(old for old, _ in pairs) / num if num else None,
        mean_after=fsum(new for _, new in pairs) / num if num else None,
    )


def _sign(value: float) -> int:
    return (value > 0) - (value < 0)
