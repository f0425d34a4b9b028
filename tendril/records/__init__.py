"""What the packages tell each other: immutable records, one schema version each.

On the log a record is msgpack (`encode`, `decode`). Times are Unix seconds, log-probs natural logs.
`[T]` marks per-completion-token fields of one length. Unknown fields from a newer minor writer are
ignored; a newer `schema` is refused.
"""

from tendril.records.base import (
    InvalidRecord,
    Record,
)
from tendril.records.codec import RECORD_TYPES, TYPE_BY_TOPIC, decode, encode
from tendril.records.episode import (
    Episode,
    Segment,
)
from tendril.records.feedback import (
    Feedback,
    FeedbackType,
)
from tendril.records.operations import (
    DeadLetter,
    Ledger,
    NodeStatus,
)
from tendril.records.policy import (
    PolicyManifest,
    StoredFile,
)
from tendril.records.release import (
    Check,
    EvalReport,
    Release,
    ReleaseState,
)
from tendril.records.trace import (
    Exploration,
    FinishReason,
    Lane,
    Latency,
    PolicySpan,
    Route,
    RoutedExperts,
    Sampling,
    ToolCall,
    Trace,
)

__all__ = [
    "RECORD_TYPES",
    "TYPE_BY_TOPIC",
    "Check",
    "DeadLetter",
    "Episode",
    "EvalReport",
    "Exploration",
    "Feedback",
    "FeedbackType",
    "FinishReason",
    "InvalidRecord",
    "Lane",
    "Latency",
    "Ledger",
    "NodeStatus",
    "PolicyManifest",
    "PolicySpan",
    "Record",
    "Release",
    "ReleaseState",
    "Route",
    "RoutedExperts",
    "Sampling",
    "Segment",
    "StoredFile",
    "ToolCall",
    "Trace",
    "decode",
    "encode",
]
