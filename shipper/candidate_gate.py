"""Runs the gate on checkpoint folders: the one place of the shipper that loads torch."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from shipper.gate import evaluate
from shipper.staging import from_snapshot, remove_parts, version_folder
from shipper.store import WeightStore
from tendril.records import Episode, EvalReport, PolicyManifest
from tendril.settings import Settings


class CandidateGate:
    """Scores a candidate and the live version on the same held-out decisions."""

    def __init__(self, store: WeightStore, settings: Settings) -> None:
        self._store, self._settings = store, settings.shipping
        self._silence_token = settings.serving.silence_token
        self._folder = settings.path(Path("shipper") / "candidates")

    def evaluate(
        self, candidate: PolicyManifest, live_version: int, episodes: Sequence[Episode]
    ) -> EvalReport:
        """The report. Raises `CorruptObject`, `WrongWeights` or `OSError`."""
        import torch  # heavy: status, rollback and the node agent do without

        from kernels.scoring import Scorable, compare, load_policy, silence_token_id

        torch.set_num_threads(1)
        live = self._store.manifest(live_version)
        episodes = [e for e in episodes if e.tokenizer_digest == live.tokenizer_digest]
        folders = self._materialise(candidate), self._materialise(live)
        silence_id = silence_token_id(folders[1], self._silence_token)
        comparisons = compare(
            load_policy(folders[0]),
            load_policy(folders[1]),
            [
                Scorable(s.prompt_token_ids, s.completion_token_ids, s.temperature)
                for episode in episodes
                for s in episode.segments
            ],
            silence_token_id=silence_id,
        )
        self._forget_others({candidate.policy_version, live_version})
        return evaluate(
            comparisons,
            episodes,
            candidate.policy_version,
            live_version,
            self._settings,
            silence_token_id=silence_id,
        )

    def _materialise(self, manifest: PolicyManifest) -> Path:
        """Always from the objects: a folder left from before could be of other weights."""
        folder = version_folder(self._folder, manifest.policy_version)
        from_snapshot(self._store, manifest, folder)
        return folder

    def _forget_others(self, versions: set[int]) -> None:
        remove_parts(self._folder)
        for folder in self._folder.iterdir():
            if folder.name not in {str(version) for version in versions}:
                shutil.rmtree(folder, ignore_errors=True)
