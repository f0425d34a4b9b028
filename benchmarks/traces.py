"""What a deployment left on its log, held against what its clients saw."""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TypeVar

from benchmarks.services import Deployment
from tendril.log import open_log, read_all
from tendril.records import Record, Trace, decode

R = TypeVar("R", bound=Record)


def records(deployment: Deployment, record_type: type[R]) -> list[R]:
    """All of one kind on the log, repeats included."""
    log = open_log(deployment.settings)
    found = [decode(record_type, record.value) for record in read_all(log, [record_type.TOPIC])]
    log.close()
    return found


def num_unmatched(trace_ids: Collection[str | None], traces: Iterable[Trace]) -> int:
    """Ids that clients were told which have no trace, or more than one."""
    count = Counter(trace.trace_id for trace in traces)
    return sum(trace_id is None or count[trace_id] != 1 for trace_id in trace_ids)


def num_misdated(traces: Iterable[Trace], num_versions: int) -> int:
    """Traces that do not name a live version for each token, or go back to an older one."""
    return sum(not _is_well_dated(trace, num_versions) for trace in traces)


def _is_well_dated(trace: Trace, num_versions: int) -> bool:
    versions = [span.policy_version for span in trace.policy_spans]
    num_tokens = sum(span.num_tokens for span in trace.policy_spans)
    return (
        num_tokens == len(trace.completion_token_ids)
        and all(1 <= version <= num_versions for version in versions)
        and versions == sorted(set(versions))
    )


def spanning_share(traces: Sequence[Trace]) -> float:
    """Share of replies that more than one version sampled."""
    return sum(len(trace.policy_spans) > 1 for trace in traces) / max(1, len(traces))
