"""A learner that ends by itself: learn_child CONFIG NUM_EPISODES, until so many are read."""

import sys
from pathlib import Path

from learner.process import Learner
from tendril.log import open_log
from tendril.settings import load_settings


def main(config: Path, num_episodes: int) -> None:
    settings = load_settings(config)
    log = open_log(settings)
    learner = Learner(settings, log)
    while learner.ledger().read["episodes"] < num_episodes:
        learner.turn()
        print(learner.state.num_steps, flush=True)
    learner.save()
    learner.close()
    log.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
