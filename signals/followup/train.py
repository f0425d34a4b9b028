"""`python -m signals.followup.train`: makes model.json again, the same bytes from the same inputs.

TF-IDF and logistic regression of scikit-learn; groups of phrases are held out to fit the
temperature, since texts of one phrase are near copies of each other.
"""

import argparse
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from signals.followup.corpus import Example, corpus
from signals.followup.model import CLASSES, FollowUpModel
from signals.followup.terms import cues, text_terms
from tendril.files import write_whole

SEED = 1
REGULARISATION = 3.0
MIN_GROUPS = 5
"""Documents that a term has to occur in."""
MAX_TERMS = 9000
NUM_FOLDS = 5
MIN_PROBABILITY = 0.5
MIN_KNOWN = 0.55
DIGITS = 4


def main(argv: list[str]) -> int:
    """Train on the packaged phrases and the benchmark's wheel, and write the model file."""
    parser = argparse.ArgumentParser(prog="python -m signals.followup.train", description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(sys.prefix) / "data")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("model.json"))
    arguments = parser.parse_args(argv)
    wheels = sorted(arguments.data.glob("bfcl_eval-*.whl"))
    if not wheels:
        print(f"{arguments.data}: expected the wheel of bfcl-eval, got none. Run `make data`",
              file=sys.stderr)  # fmt: skip
        return 1
    import sklearn.linear_model  # noqa: F401  (only libraries that are loaded can be limited)
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    with threadpool_limits(1):  # sums in another order end in other last digits
        model = train(corpus(wheels[0], SEED))
    write_whole(arguments.out, msgspec.json.encode(model) + b"\n")
    print(f"{arguments.out}: {len(model.terms)} terms, digest {model.digest}")
    return 0


def train(examples: list[Example]) -> FollowUpModel:
    """The fitted model. Temperature: least log loss on held-out groups of phrases."""
    from scipy.optimize import minimize_scalar
    from sklearn.model_selection import GroupKFold

    labels_N = np.array([CLASSES.index(e.label) for e in examples])
    groups = [e.group for e in examples]
    logits_NC = np.zeros((len(examples), len(CLASSES)))
    folds = GroupKFold(NUM_FOLDS, shuffle=True, random_state=SEED)
    for kept_N, held_N in folds.split(labels_N, groups=groups):
        features, regression = _fit([examples[i] for i in kept_N], labels_N[kept_N])
        held = features.transform([examples[i] for i in held_N])
        logits_NC[held_N] = regression.decision_function(held)

    def log_loss(temperature: float) -> float:
        scaled_NC = logits_NC / temperature
        top_N1 = scaled_NC.max(axis=1, keepdims=True)
        sums_N = np.log(np.exp(scaled_NC - top_N1).sum(axis=1)) + top_N1[:, 0]
        return float(np.mean(sums_N - scaled_NC[np.arange(len(labels_N)), labels_N]))

    temperature = minimize_scalar(log_loss, bounds=(0.3, 5.0), method="bounded").x
    return _exported(*_fit(examples, labels_N), float(temperature))


class _Features:
    """TF-IDF terms beside cues, as one sparse matrix."""

    def __init__(self) -> None:
        from sklearn.feature_extraction import DictVectorizer
        from sklearn.feature_extraction.text import TfidfVectorizer

        self.text = TfidfVectorizer(
            analyzer=text_terms, sublinear_tf=True, min_df=MIN_GROUPS, max_features=MAX_TERMS
        )
        self.cues = DictVectorizer()

    def fit_transform(self, examples: list[Example]) -> Any:
        from scipy.sparse import hstack

        text = self.text.fit_transform([e.followup for e in examples])
        return hstack([text, self.cues.fit_transform(map(_cues, examples))], format="csr")

    def transform(self, examples: list[Example]) -> Any:
        from scipy.sparse import hstack

        text = self.text.transform([e.followup for e in examples])
        return hstack([text, self.cues.transform(map(_cues, examples))], format="csr")


def _cues(example: Example) -> dict[str, float]:
    return cues(example.previous, example.reply, example.followup)


def _fit(examples: list[Example], labels_N: NDArray[np.int64]) -> tuple[_Features, Any]:
    from sklearn.linear_model import LogisticRegression

    features = _Features()
    regression = LogisticRegression(
        C=REGULARISATION, class_weight="balanced", max_iter=400, random_state=SEED
    )
    return features, regression.fit(features.fit_transform(examples), labels_N)


def _exported(features: _Features, regression: Any, temperature: float) -> FollowUpModel:
    """The fitted numbers, rounded: what is left out is far below what a verdict depends on."""
    coefficients_FC = np.round(regression.coef_.T, DIGITS)
    names = list(features.text.get_feature_names_out())
    idfs = np.round(features.text.idf_, DIGITS)
    split = len(names)
    return FollowUpModel(
        terms={
            name: (float(idf), *map(float, row))
            for name, idf, row in zip(names, idfs, coefficients_FC[:split], strict=True)
        },
        cues={
            name: tuple(map(float, row))
            for name, row in zip(
                features.cues.get_feature_names_out(), coefficients_FC[split:], strict=True
            )
        },
        bias=tuple(map(float, np.round(regression.intercept_, DIGITS))),
        temperature=round(temperature, DIGITS),
        min_probability=MIN_PROBABILITY,
        min_known=MIN_KNOWN,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
