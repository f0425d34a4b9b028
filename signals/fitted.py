"""Which fits are in use at a moment: the fold of the `fits` topic, so that a replay agrees."""

import contextlib
from bisect import bisect_right

import msgspec

from signals.centring import Centres
from signals.debias.delay_weights import NO_CORRECTION, DelayWeights
from tendril.ids import digest_of
from tendril.log import EventLog, drain, readable
from tendril.records import InvalidRecord, RewardFit

NO_CENTRES = Centres()


class FitsInUse(msgspec.Struct, frozen=True):
    """What one look at a trace corrects by."""

    delays: DelayWeights = NO_CORRECTION
    centres: Centres = NO_CENTRES
    digest: str = ""
    """Names both; empty where there are none."""


NO_FITS = FitsInUse()


class Fits:
    """`take` each record in the log's order, once or more often."""

    def __init__(self) -> None:
        self._logged_at: list[float] = []
        self._in_use: list[FitsInUse] = [NO_FITS]
        self.made_at = 0.0
        """Of the newest."""

    def take(self, record: RewardFit, *, logged_at: float) -> None:
        """Raises `InvalidRecord` for contents that nobody can read."""
        newest = self._in_use[-1]
        try:
            if record.kind == "delays":
                newest = FitsInUse(
                    msgspec.json.decode(record.content, type=DelayWeights), newest.centres
                )
            else:
                newest = FitsInUse(newest.delays, msgspec.json.decode(record.content, type=Centres))
        except msgspec.DecodeError as error:
            raise InvalidRecord(f"fit {record.digest}: {error}") from error
        self.made_at = max(self.made_at, record.made_at)
        digest = digest_of("fits", newest.delays.digest, newest.centres.digest)
        newest = FitsInUse(newest.delays, newest.centres, digest)
        if newest != self._in_use[-1]:
            self._logged_at.append(logged_at)
            self._in_use.append(newest)

    def at(self, moment: float) -> FitsInUse:
        """As of that moment of the log's clock."""
        return self._in_use[bisect_right(self._logged_at, moment)]


class FitsFollower:
    """Reads `fits` from its beginning, beside all groups."""

    def __init__(self, log: EventLog) -> None:
        self._reader = log.reader(None, (RewardFit.TOPIC,))
        self.fits = Fits()

    def follow(self) -> None:
        """Read what is new. Raises `LogUnavailable`."""
        for record, logged_at in readable(drain(self._reader), RewardFit):
            with contextlib.suppress(InvalidRecord):  # what is in it corrects nothing
                self.fits.take(record, logged_at=logged_at)

    def close(self) -> None:
        self._reader.close()
