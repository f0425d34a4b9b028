"""Bandits small enough to enumerate: the estimators against exact policy gradients, in float64.

An expectation is one batch that lists every outcome with its probability as weight and 1 as
divisor. Shapes: K = actions (action 0 is silence), N = samples, X = contexts, L = logits.
"""

import pytest
import torch
from torch import Tensor

from kernels.exploration import exploration_weight
from learner.advantages import online_advantages
from learner.baseline import Baseline
from learner.losses import kl_k2_loss, online_loss

LOGITS = (0.3, -0.8, 1.1, 0.0, -1.5)
OLD_LOGITS = (0.1, -0.5, 0.9, 0.4, -1.2)
REF_LOGITS = (-0.6, 0.7, 0.2, -0.3, 0.5)
REWARDS = (0.0, 0.75, -0.25, 0.4, -1.0)
WIDE = {"ratio_low": 1e-6, "ratio_high": 1e6}  # a band that cuts nothing


def tensor(values: tuple[float, ...]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def logprobs(values: tuple[float, ...]) -> Tensor:
    return tensor(values).log_softmax(0)


def gradient(loss: Tensor, leaf: Tensor) -> Tensor:
    (result,) = torch.autograd.grad(loss, leaf, retain_graph=True)
    return result


def closed_form_gradient(values_K: Tensor, logits: tuple[float, ...] = LOGITS) -> Tensor:
    """Of E[value] under the softmax: pi (value - E[value])."""
    policy_K = logprobs(logits).exp()
    return policy_K * (values_K - (policy_K * values_K).sum())


def exploring(old_K: Tensor, share: float) -> Tensor:
    """First-token probabilities of the mixture in which silence is forbidden in a `share`."""
    forced_K = old_K / (1 - old_K[0])
    forced_K[0] = 0.0
    return (1 - share) * old_K + share * forced_K


def weights_of(silence_logprob: float, share: float, size: int) -> Tensor:
    return tensor(
        tuple(exploration_weight(share, silence_logprob, action == 0) for action in range(size))
    )


def expected_gradient(
    behavior_K: Tensor, old_logprobs_K: Tensor, weights_K: Tensor, baseline: float = 0.0
) -> Tensor:
    """Ascent direction of `online_loss`, in expectation over `behavior_K`."""
    leaf = tensor(LOGITS).requires_grad_()
    loss, _ = online_loss(
        leaf.log_softmax(0),
        old_logprobs_K,
        tensor(REWARDS) - baseline,
        behavior_K * weights_K,
        torch.ones(len(LOGITS), dtype=torch.bool),
        num_tokens=1,
        **WIDE,
    )
    return -gradient(loss, leaf)


@pytest.mark.parametrize("baseline", [0.0, 0.37])
@pytest.mark.parametrize("old", [LOGITS, OLD_LOGITS])
def test_the_expected_gradient_is_the_exact_policy_gradient(
    old: tuple[float, ...], baseline: float
) -> None:
    old_K = logprobs(old)
    got_K = expected_gradient(old_K.exp(), old_K, torch.ones_like(old_K), baseline)
    assert torch.allclose(got_K, closed_form_gradient(tensor(REWARDS)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("silence_logit", [-3.0, 0.1, 4.0])
@pytest.mark.parametrize("old", [LOGITS, OLD_LOGITS])
def test_exploration_weights_restore_the_exact_gradient_and_without_them_it_is_wrong(
    old: tuple[float, ...], silence_logit: float
) -> None:
    share, old_K = 0.1, logprobs((silence_logit, *old[1:]))
    behavior_K = exploring(old_K.exp(), share)
    assert behavior_K.sum().item() == pytest.approx(1.0, abs=1e-12)
    weights_K = weights_of(old_K[0].item(), share, len(old))
    exact_K = closed_form_gradient(tensor(REWARDS))
    for baseline in (0.0, 0.37):
        got_K = expected_gradient(behavior_K, old_K, weights_K, baseline)
        assert torch.allclose(got_K, exact_K, rtol=0, atol=1e-10)
        unweighted_K = expected_gradient(behavior_K, old_K, torch.ones_like(old_K), baseline)
        assert not torch.allclose(unweighted_K, exact_K, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("old", "share"), [(LOGITS, 0.0), (OLD_LOGITS, 0.0), (OLD_LOGITS, 0.1)])
def test_sampled_gradients_are_unbiased_within_confidence_bounds(
    old: tuple[float, ...], share: float
) -> None:
    num_samples, old_K = 100_000, logprobs(old)
    behavior_K = exploring(old_K.exp(), share)
    generator = torch.Generator().manual_seed(11)
    actions_N = torch.multinomial(behavior_K, num_samples, True, generator=generator)
    weights_K = weights_of(old_K[0].item(), share, len(old))
    leaf = tensor(LOGITS).requires_grad_()
    loss, _ = online_loss(
        leaf.log_softmax(0)[actions_N],
        old_K[actions_N],
        tensor(REWARDS)[actions_N],
        weights_K[actions_N],
        torch.ones(num_samples, dtype=torch.bool),
        **WIDE,
    )
    policy_K, exact_K = logprobs(LOGITS).exp(), closed_form_gradient(tensor(REWARDS))
    scale_K = policy_K / old_K.exp() * weights_K * tensor(REWARDS)
    samples_KL = scale_K[:, None] * (torch.eye(len(old)) - policy_K)  # gradient of each action
    variance_L = (behavior_K[:, None] * (samples_KL - exact_K).square()).sum(0)
    z_L = (-gradient(loss, leaf) - exact_K) / (variance_L / num_samples).sqrt()
    assert z_L.abs().max() < 4


def test_the_band_keeps_the_gradient_of_the_kept_actions_only() -> None:
    old_K = logprobs(OLD_LOGITS)
    policy_K = logprobs(LOGITS).exp()
    ratio_K = policy_K / old_K.exp()
    kept_K = (ratio_K >= 0.7) & (ratio_K <= 1.3)
    assert kept_K.any()
    assert not kept_K.all()
    leaf = tensor(LOGITS).requires_grad_()
    loss, metrics = online_loss(
        leaf.log_softmax(0),
        old_K,
        tensor(REWARDS),
        old_K.exp(),
        torch.ones(len(LOGITS), dtype=torch.bool),
        ratio_low=0.7,
        ratio_high=1.3,
        num_tokens=1,
    )
    expected_K = closed_form_gradient(torch.where(kept_K, tensor(REWARDS), 0.0))
    assert torch.allclose(-gradient(loss, leaf), expected_K, rtol=0, atol=1e-10)
    assert metrics["kept_share"].item() == int(kept_K.sum())


def kl_gradients() -> tuple[Tensor, Tensor]:
    """Exact gradients of KL(policy || ref) and KL(ref || policy), by autograd on the sums."""
    leaf = tensor(LOGITS).requires_grad_()
    policy_K, ref_K = leaf.log_softmax(0), logprobs(REF_LOGITS)
    reverse = (policy_K.exp() * (policy_K - ref_K)).sum()
    forward = (ref_K.exp() * (ref_K - policy_K)).sum()
    return gradient(reverse, leaf), gradient(forward, leaf)


def estimators(policy_K: Tensor) -> dict[str, Tensor]:
    """k1, k2 and k3 of KL(policy || ref) for each action."""
    k1_K = policy_K - logprobs(REF_LOGITS)
    return {"k1": k1_K, "k2": k1_K.square() / 2, "k3": torch.expm1(-k1_K) + k1_K}


@pytest.mark.parametrize("name", ["k1", "k2", "k3"])
def test_where_a_kl_estimator_goes_decides_which_kl_it_descends(name: str) -> None:
    reverse_K, forward_K = kl_gradients()
    leaf = tensor(LOGITS).requires_grad_()
    policy_K = leaf.log_softmax(0)
    values_K = estimators(policy_K)[name]
    in_loss_K = gradient((policy_K.exp().detach() * values_K).sum(), leaf)
    in_reward_K = closed_form_gradient(values_K.detach())
    expected = {
        "k1": (reverse_K, torch.zeros_like(reverse_K)),
        "k2": (None, reverse_K),
        "k3": (reverse_K - forward_K, forward_K),
    }
    reward_K, loss_K = expected[name]
    assert torch.allclose(in_loss_K, loss_K, rtol=0, atol=1e-10)
    if reward_K is None:
        assert not torch.allclose(in_reward_K, reverse_K, rtol=0, atol=1e-3)
    else:
        assert torch.allclose(in_reward_K, reward_K, rtol=0, atol=1e-10)


@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize("old", [LOGITS, OLD_LOGITS])
def test_the_kl_loss_descends_the_reverse_kl_also_off_policy_and_under_exploration(
    old: tuple[float, ...], share: float
) -> None:
    old_K = logprobs(old)
    weights_K = exploring(old_K.exp(), share) * weights_of(old_K[0].item(), share, len(old))
    leaf = tensor(LOGITS).requires_grad_()
    loss, metrics = kl_k2_loss(
        leaf.log_softmax(0),
        logprobs(REF_LOGITS),
        old_K,
        torch.ones(len(old), dtype=torch.bool),
        weights_T=weights_K,
        num_tokens=1,
    )
    assert torch.allclose(gradient(loss, leaf), kl_gradients()[0], rtol=0, atol=1e-10)
    policy_K = logprobs(LOGITS)
    kl = (policy_K.exp() * (policy_K - logprobs(REF_LOGITS))).sum().item()
    assert metrics["kl_k1"].item() == pytest.approx(kl, abs=1e-10)
    assert metrics["kl_k3"].item() == pytest.approx(kl, abs=1e-10)


def train_tab(
    threshold: float, accepts: tuple[float, ...], *, key_on_action: bool, num_steps: int = 250
) -> list[float]:
    """Show rate of each context after training on expectations. Accept 1-t, reject -t, silent 0."""
    logits_X = torch.zeros(len(accepts), dtype=torch.float64, requires_grad=True)
    baseline = Baseline(half_life=2_000, pseudo_count=1e-3)
    outcomes = [(x, k) for x in range(len(accepts)) for k in ("accept", "reject", "silent")]
    contexts_T = torch.tensor([x for x, _ in outcomes])
    silent_T = torch.tensor([kind == "silent" for _, kind in outcomes])
    reward_of = {"accept": 1 - threshold, "reject": -threshold, "silent": 0.0}
    rewards_T = tensor(tuple(reward_of[kind] for _, kind in outcomes))
    accept_T = tensor(tuple(accepts[x] if k == "accept" else 1 - accepts[x] for x, k in outcomes))
    keys = [
        ("all", f"{x}", f"{x}/{kind == 'silent'}") if key_on_action else ("all", f"{x}")
        for x, kind in outcomes
    ]
    ones_T = torch.ones(len(outcomes), dtype=torch.long)
    for _ in range(num_steps):
        signed_T = torch.where(silent_T, -logits_X[contexts_T], logits_X[contexts_T])
        policy_T = torch.nn.functional.logsigmoid(signed_T)
        weights_T = torch.where(silent_T, 1.0, accept_T) * policy_T.detach().exp()
        baselines_T = tensor(tuple(baseline.predict(key) for key in keys))
        advantages_T = online_advantages(rewards_T, ones_T > 0, baselines_T, weights_T, ones_T)
        for key, reward, weight in zip(keys, rewards_T.tolist(), weights_T.tolist(), strict=True):
            baseline.update(key, reward, weight)
        loss, _ = online_loss(
            policy_T, policy_T.detach(), advantages_T, weights_T, ones_T > 0, num_tokens=1, **WIDE
        )
        logits_X.data -= 2.0 * gradient(loss, logits_X)
    return logits_X.sigmoid().tolist()


@pytest.mark.parametrize("threshold", [0.1, 0.25, 0.5])
def test_the_tab_policy_shows_exactly_where_acceptance_passes_the_threshold(
    threshold: float,
) -> None:
    accepts = tuple(threshold + gap for gap in (-0.08, -0.04, 0.04, 0.08))
    rates = train_tab(threshold, accepts, key_on_action=False)
    assert max(rates[:2]) < 0.05
    assert min(rates[2:]) > 0.95


@pytest.mark.parametrize("threshold", [0.1, 0.25, 0.5])
def test_a_baseline_that_knows_the_action_loses_the_tab_threshold(threshold: float) -> None:
    accepts = tuple(threshold + gap for gap in (-0.08, -0.04, 0.04, 0.08))
    rates = train_tab(threshold, accepts, key_on_action=True)
    assert all(0.4 < rate < 0.6 for rate in rates)


def test_the_tab_policy_finds_the_threshold_from_samples_under_exploration() -> None:
    generator = torch.Generator().manual_seed(5)
    accepts_X, share, size = tensor((0.1, 0.4)), 0.1, 64
    logits_X = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    baseline = Baseline(half_life=500)
    ones_N = torch.ones(size, dtype=torch.long)
    for _ in range(150):
        contexts_N = torch.randint(2, (size,), generator=generator)
        draws_3N = torch.rand(3, size, generator=generator, dtype=torch.float64)
        show_N = (draws_3N[0] < share) | (draws_3N[1] < logits_X.detach().sigmoid()[contexts_N])
        accepted_N = draws_3N[2] < accepts_X[contexts_N]
        rewards_N = torch.where(show_N, torch.where(accepted_N, 0.75, -0.25), 0.0).double()
        signed_N = torch.where(show_N, logits_X[contexts_N], -logits_X[contexts_N])
        policy_N = torch.nn.functional.logsigmoid(signed_N)
        silence_N = torch.nn.functional.logsigmoid(-logits_X.detach()[contexts_N]).tolist()
        weights_N = tensor(
            tuple(
                exploration_weight(share, silence, not shown)
                for silence, shown in zip(silence_N, show_N.tolist(), strict=True)
            )
        )
        keys = [("all", f"{x}") for x in contexts_N.tolist()]
        baselines_N = tensor(tuple(baseline.predict(key) for key in keys))
        advantages_N = online_advantages(rewards_N, ones_N > 0, baselines_N, weights_N, ones_N)
        for key, reward, weight in zip(keys, rewards_N.tolist(), weights_N.tolist(), strict=True):
            baseline.update(key, reward, weight)
        loss, _ = online_loss(
            policy_N, policy_N.detach(), advantages_N, weights_N, ones_N > 0, **WIDE
        )
        logits_X.data -= 2.0 * gradient(loss, logits_X)
    reject_rate, accept_rate = logits_X.sigmoid().tolist()
    assert reject_rate < 0.05
    assert accept_rate > 0.95
