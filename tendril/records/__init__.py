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
from tendril.records.consent import Consent
from tendril.records.episode import (
    MATURITIES,
    Episode,
    Graded,
    Maturity,
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
from tendril.records.quarantine import (
    Quarantine,
    QuarantineScope,
)
from tendril.records.release import (
    Check,
    EvalReport,
    Release,
    ReleaseState,
)
from tendril.records.reward_fit import RewardFit
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
    "MATURITIES",
    "RECORD_TYPES",
    "TYPE_BY_TOPIC",
    "Check",
    "Consent",
    "DeadLetter",
    "Episode",
    "EvalReport",
    "Exploration",
    "Feedback",
    "FeedbackType",
    "FinishReason",
    "Graded",
    "InvalidRecord",
    "Lane",
    "Latency",
    "Ledger",
    "Maturity",
    "NodeStatus",
    "PolicyManifest",
    "PolicySpan",
    "Quarantine",
    "QuarantineScope",
    "Record",
    "Release",
    "ReleaseState",
    "RewardFit",
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
