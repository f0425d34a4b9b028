"""What may not be trained on any more, whatever was so when its episode was made."""

from collections.abc import Mapping

from tendril.consent import ConsentFollower
from tendril.log import EventLog
from tendril.quarantine import QuarantineFollower, Subject
from tendril.records import Episode
from tendril.settings import TenantConsent


class Withdrawals:
    """Consents and quarantines as they are now. One thread."""

    def __init__(self, log: EventLog, tenants: Mapping[str, TenantConsent]) -> None:
        self._consents, self._quarantines = ConsentFollower(log, tenants), QuarantineFollower(log)

    def follow(self) -> bool:
        """Read what is new; whether anything changed. Raises `LogUnavailable`."""
        persons, is_changed = self._consents.follow(), self._quarantines.follow()
        return bool(persons) or is_changed

    def reason(self, episode: Episode) -> str | None:
        """Why nobody may learn from the episode at this moment; None if one may."""
        agrees = self._consents.consents.allows_training(
            episode.tenant, episode.user_key, made_at=episode.served_at
        )
        if not agrees:
            return "opted out"
        is_held = episode.quarantine_ids or self._quarantines.quarantines.of(Subject.of(episode))
        return "quarantined" if is_held else None

    def close(self) -> None:
        self._consents.close()
        self._quarantines.close()
