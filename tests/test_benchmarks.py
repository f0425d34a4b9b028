"""The benchmark command: what it lists, refuses and writes."""

import ast
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.__main__ import benchmark_names, figures_table, main, report_json
from benchmarks.disconnects import Asked, Seen, kept_of, num_failed, requests
from benchmarks.figures import Figure
from benchmarks.gateway import BARE, GATEWAY, NODE, SAME_KERNELS, Round, compared
from benchmarks.kafka_log import Pair
from benchmarks.kafka_log import compared as compared_pairs
from benchmarks.machine import describe_machine
from benchmarks.models import Prompts, one_token_words, padded, stepped
from benchmarks.services import OURS_ALONE, bare_arguments
from benchmarks.streams import Failed, end_of
from benchmarks.swap import Swapped, gap_figure, held_figures, longest_gap_s, num_different
from benchmarks.traces import num_misdated, num_unmatched, spanning_share
from serving.text import TextCodec
from serving.vllm_engine.launch import vllm_arguments
from tendril.records import PolicySpan, Trace
from tendril.settings import PACKAGED_CHECKPOINT, ServingSettings
from tendril.weights import TensorBytes
from tests.builders import make_trace

MET = Figure(
    metric="ratio", unit="x", ours=8.0, peer=4.0, peer_name="zstd", ratio=2.0, target=6.0, ok=True
)
PLAIN = Figure(metric="speed", unit="MB/s", ours=120.0)


def test_the_list_names_every_module_with_a_run_and_says_what_it_measures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    folder = Path(__file__).parent.parent / "benchmarks"
    names = {f.stem for f in folder.glob("*.py") if "\ndef run() -> list[Figure]:" in f.read_text()}
    assert {line.split()[0] for line in lines} == names
    assert all(len(line.split()) > 1 for line in lines)


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["--json", "out.json"]])
def test_bad_usage_exits_with_two(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(arguments)
    assert exit_info.value.code == 2


def test_the_report_holds_machine_command_and_figures() -> None:
    report = json.loads(report_json(describe_machine(), "python -m benchmarks x", [MET, PLAIN]))
    assert report["command"] == "python -m benchmarks x"
    assert report["figures"][0] == {
        "metric": "ratio", "unit": "x", "ours": 8.0, "peer": 4.0, "peer_name": "zstd",
        "ratio": 2.0, "target": 6.0, "ok": True,
    }  # fmt: skip
    assert report["figures"][1]["ok"] is None
    assert report["machine"]["cores"] >= 1
    assert report["machine"]["memory_gib"] > 0
    assert report["machine"]["cpu"]


def test_the_table_has_one_row_a_figure() -> None:
    assert figures_table("x", [MET, PLAIN]).row_count == 2


def test_listing_imports_no_benchmark() -> None:
    tree = ast.parse((Path(__file__).parent.parent / "benchmarks" / "__main__.py").read_text())
    imported = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert not imported & {f"benchmarks.{name}" for name in benchmark_names()}


def test_vllms_own_server_gets_our_arguments_without_what_only_we_need() -> None:
    settings = ServingSettings(vllm_args=("--seed", "3"))
    ours = vllm_arguments(PACKAGED_CHECKPOINT, settings, on_cpu=True, silence=False)
    bare = bare_arguments(ours)
    assert not {"--worker-extension-cls", "--weight-transfer-config", "--logprobs-mode"} & {*bare}
    assert len(ours) - len(bare) == 2 * len(OURS_ALONE)
    assert bare[:2] == ["--model", str(PACKAGED_CHECKPOINT)]
    assert bare[bare.index("--dtype") + 1] == "float32"
    assert bare[-2:] == ["--seed", "3"]


def test_prompts_have_the_length_asked_for_and_never_come_twice() -> None:
    codec = TextCodec(PACKAGED_CHECKPOINT)
    prompts = Prompts(PACKAGED_CHECKPOINT).take(50, 48)
    assert {len(codec.encode(prompt)) for prompt in prompts} == {48}
    assert len(set(prompts)) == 50


def test_a_padded_vocabulary_keeps_its_tokens_and_fills_up_the_rest() -> None:
    full = padded({"a": 0, "Ġthe": 1}, 5)
    assert sorted(full.values()) == [0, 1, 2, 3, 4]
    assert (full["a"], full["Ġthe"]) == (0, 1)
    assert one_token_words(full) == [" the"]  # the filling is no word of a prompt


def test_a_neighbour_differs_by_one_step_in_the_share_asked_for() -> None:
    bits_N = np.full(100_000, 0x3F80, np.uint16)  # 1.0
    tensor = TensorBytes("BF16", (100_000,), bits_N.tobytes())
    changed_N = np.frombuffer(stepped(tensor, 0.01, np.random.default_rng(0)).data, np.uint16)
    assert set(changed_N - bits_N) == {0, 1}
    assert np.mean(changed_N != bits_N) == pytest.approx(0.01, rel=0.1)
    plain = TensorBytes("F32", (1,), b"1234")
    assert stepped(plain, 1.0, np.random.default_rng(0)) == plain


def stream_events(*, num_tokens: int = 3, finish_reason: str = "length") -> list[bytes]:
    """As vLLM ends a stream: last token, usage, done."""
    events: list[Any] = [
        {"choices": [{"finish_reason": None}]},
        {"choices": [{"finish_reason": finish_reason}]},
        {"choices": [], "usage": {"completion_tokens": num_tokens}},
    ]
    return [*(b"data: " + json.dumps(event).encode() for event in events), b"data: [DONE]"]


def test_a_streams_end_says_how_many_tokens_it_had_and_why_it_ended() -> None:
    assert end_of(stream_events(num_tokens=7, finish_reason="stop")) == (7, "stop")


@pytest.mark.parametrize("num_missing", [1, 2, 3])
def test_a_stream_that_was_cut_off_is_a_failure(num_missing: int) -> None:
    with pytest.raises(Failed):
        end_of(stream_events()[:-num_missing])


def test_the_gateway_is_judged_by_the_median_of_paired_rounds() -> None:
    rounds = {
        BARE: [Round(100, [0.010] * 99 + [0.1]), Round(50, [0.010] * 100), Round(80, [0.010])],
        SAME_KERNELS: [Round(90, [0.010]), Round(50, [0.010]), Round(80, [0.010])],
        NODE: [Round(90, [0.010]), Round(50, [0.010]), Round(80, [0.010])],
        GATEWAY: [Round(98, [0.0129] * 99 + [0.2]), Round(49, [0.0129]), Round(40, [0.0129])],
    }
    speed, p50, p99 = compared("8 streams", rounds)[:3]
    assert speed.ratio == pytest.approx(0.98)
    assert (p50.ours, p50.peer) == pytest.approx((12.9, 10))
    assert (speed.ok, p50.ok, p99.ok) == (True, True, False)
    assert {figure.ok for figure in compared("8 streams", rounds) if "node, first" in figure.metric
            and "gateway" not in figure.metric} == {None}  # fmt: skip


def test_kafka_is_judged_by_the_median_of_what_each_pair_shows() -> None:
    # The machine halves in the second round and the third: single speeds say nothing.
    slowing = [Pair(90, 100), Pair(40, 50), Pair(40, 50)]
    figure = compared_pairs("read", slowing)
    assert (figure.ratio, figure.ours, figure.peer, figure.ok) == (0.8, 40, 50, True)
    assert compared_pairs("read", [Pair(79, 100)] * 3).ok is False


def test_a_held_p99_over_its_limit_is_a_miss() -> None:
    p50, p99 = held_figures([20.0] * 90 + [200.0] * 10, [1_000.0])
    assert (p50.ours, p50.ratio) == pytest.approx((20.0, 0.02))
    assert (p99.ours, p50.ok, p99.ok) == (200.0, None, False)
    assert held_figures([20.0] * 100, [1_000.0])[1].ok is True


def test_the_longest_gap_is_of_the_events_around_a_time() -> None:
    event_s = [0.0, 1.0, 1.1, 3.0, 3.1, 9.0]
    assert longest_gap_s(event_s, 1.05, 3.05) == pytest.approx(1.9)
    assert longest_gap_s(event_s, 2.0, 2.1) == pytest.approx(1.9)  # nothing came inside
    assert longest_gap_s([], 0.0, 1.0) == 0.0


def test_a_swaps_gap_stands_beside_that_of_as_long_a_time_without() -> None:
    steady = [i / 10 for i in range(101)]  # ten seconds, ten tokens a second
    figure = gap_figure([*steady, 10.5], [Swapped(1.0, 400.0, 10.0, 10.5)], (0.0, 9.0))
    assert (figure.ours, figure.peer, figure.ratio) == pytest.approx((500, 100, 5))


def test_answers_are_compared_to_the_last_bit() -> None:
    assert num_different([{"logprobs": [0.1]}, {"logprobs": [0.2]}],
                         [{"logprobs": [0.1]}, {"logprobs": [0.2 + 2**-54]}]) == 1  # fmt: skip


def test_a_reply_with_no_trace_or_two_is_unmatched() -> None:
    traces = [make_trace(trace_id=name) for name in ("a", "b", "b")]
    assert num_unmatched(["a", "b", "c", None], traces) == 3


def trace_by(*spans: tuple[int, int]) -> Trace:
    """A three-token trace by those versions, each with its number of tokens."""
    return make_trace(
        policy_spans=tuple(PolicySpan(policy_version=v, num_tokens=n) for v, n in spans)
    )


def test_versions_that_never_were_live_or_come_back_are_wrong() -> None:
    good = [trace_by((1, 3)), trace_by((1, 1), (2, 2))]
    bad = [trace_by((3, 3)), trace_by((2, 1), (1, 2)), trace_by((1, 1), (2, 1), (1, 1))]
    assert num_misdated(good, num_versions=2) == 0
    assert num_misdated(good + bad, num_versions=2) == 3
    assert spanning_share(good) == 0.5


def given_up(number: int, *, n: int = 1, leaving: Any = "never", **seen: Any) -> Seen:
    return Seen(Asked(number, "/v1/completions", {"n": n}, leaving, 1), **seen)


def test_each_choice_that_a_client_saw_has_one_trace() -> None:
    traces = [
        make_trace(trace_id="a", harness_digest="request-0"),
        make_trace(trace_id="a.1", choice=1, harness_digest="request-0"),
        make_trace(trace_id="b", harness_digest="request-1"),
        make_trace(trace_id="b", harness_digest="request-1"),
        make_trace(trace_id="d", harness_digest="request-3", completion_token_ids=(),
                   behavior_logprobs=(), token_bytes=(), policy_spans=()),
    ]  # fmt: skip
    seen = [
        given_up(0, n=2, status=200, trace_id="a", ended=True),
        given_up(1, n=2, status=200, trace_id="b", ended=True),  # its second choice is missing
        given_up(2, status=200, trace_id="c"),  # named, and not kept
        given_up(3, leaving="before"),
        given_up(4, leaving="before"),
    ]
    kept = kept_of(seen, traces)
    assert kept == (1, 2, 2, 1, 4)
    assert kept._fields == ("doubled", "unkept", "untraced", "empty", "total")


def test_who_left_before_an_answer_did_not_fail() -> None:
    seen = [
        given_up(0, leaving="before"),
        given_up(1, leaving="before", status=500),
        given_up(2, leaving="during"),
        given_up(3, status=429),
        given_up(4, status=200),
    ]
    assert num_failed(seen) == 3


def test_the_same_seed_asks_and_leaves_in_the_same_way() -> None:
    first, again = (list(requests(200, random.Random(1))) for _ in range(2))
    assert first == again
    assert {asked.leaving for asked in first} == {"before", "during", "after", "never"}
    assert len({asked.label for asked in first}) == 200
