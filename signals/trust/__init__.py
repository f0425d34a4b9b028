"""Trust: what keeps one loud, fake or broken source from steering the reward.

Two doors for the join: `CapState` gives each trace's weight, `Quarantines` says whether a row is
held. `detect` looks at a whole window and returns findings, which `placed` turns into quarantines.
"""
