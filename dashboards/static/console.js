// The console page: polls /api/loop once a second and writes what it says. Text only, never HTML.

import { showCharts } from "./curves.js";
import { NONE, age, bytes, clock, element, number, percent, setText, signed, version } from "./words.js";

const POLL_MS = 1000;
const TIMEOUT_MS = 4000;

const byId = (id) => document.getElementById(id);
const tag = (text, level) => element("span", `tag ${level ?? ""}`, text);
const cell = (content, className) => element("td", className, content);

function fillTable(id, rows, emptyText) {
  const body = byId(id).tBodies[0];
  if (rows.length === 0) {
    const empty = cell(emptyText, "empty");
    empty.colSpan = byId(id).tHead.rows[0].cells.length;
    rows = [element("tr", "", empty)];
  }
  rows.forEach((row, i) => {
    const old = body.rows[i];
    if (!old) body.append(row);
    else if (!old.isEqualNode(row)) old.replaceWith(row); // what did not change stays selectable
  });
  while (body.rows.length > rows.length) body.rows[rows.length].remove();
}

// ---- header, tiles, stages ----

const HEALTH_LEVEL = { healthy: "good", degraded: "warn", failing: "bad", waiting: "" };

function showHealth({ health }) {
  setText(byId("health"), health.level, `pill ${HEALTH_LEVEL[health.level]}`);
  const words = health.problems.join(" · ") || "every hop is fresh, every record accounted for";
  setText(byId("problems"), words);
  byId("problems").title = words;
  document.title = `Tendril: ${health.level}`;
}

function makeTile(label) {
  const value = element("div", "value", NONE);
  const note = element("span", "note", "");
  byId("tiles").append(element("div", "tile", element("div", "label", label), value, note));
  return (text, detail, level) => {
    setText(value, text, `value ${level ?? ""}`);
    setText(note, detail ?? "");
    note.title = detail ?? "";
  };
}

const tiles = Object.fromEntries(
  [["live", "Live version"], ["traffic", "Traffic"], ["failed", "Failed requests"],
   ["pause", "Swap pause, p99"], ["delta", "Delta size, median"], ["ledger", "Loss accounting"]]
    .map(([key, label]) => [key, makeTile(label)]));

function showTiles(loop) {
  const { traffic, swap_pause_ms: pause, delta_ratio: ratio } = loop;
  const newest = loop.newest_version;
  const since = loop.live_since == null ? "nothing is released yet" : `since ${clock(loop.live_since).slice(0, 5)}`;
  tiles.live(version(loop.live_version), newest == null ? since : `${since}, newest ${version(newest)}`);
  tiles.traffic(`${number(traffic.per_second, 1)} / s`, `${number(traffic.num_decisions)} decisions`);
  tiles.failed(number(traffic.num_failed), `${number(traffic.num_failed_recently)} in the last 5 min`,
    traffic.num_failed_recently ? "bad" : traffic.num_failed ? "warn" : "good");
  tiles.pause(pause.num ? `${number(pause.p99, 1)} ms` : NONE,
    pause.num ? `p50 ${number(pause.p50, 1)} ms, ${pause.num} swaps` : "no swap yet");
  tiles.delta(bytes(loop.delta_bytes.p50 == null ? null : Math.round(loop.delta_bytes.p50)),
    ratio.num ? `${number(ratio.p50, 1)} × smaller` : "no delta yet");
  const balanced = loop.ledger_balanced;
  tiles.ledger(balanced == null ? NONE : balanced ? "balanced" : "not balanced",
    balanced == null ? "no process has reported" : unreadWords(loop),
    balanced == null ? "" : balanced ? "good" : "bad");
}

function unreadWords(loop) {
  const unread = loop.num_dead_letters + loop.num_unreadable;
  return unread ? `${number(unread)} unreadable` : "nothing unreadable";
}

const STAGE_LABEL = {
  request: "Newest request", feedback: "Newest feedback", episode: "Newest episode",
  trained: "Newest trained weights", live: "Live weights",
};
const STAGE_LEVEL = { fresh: "good", late: "warn", stale: "bad", none: "" };

const stages = Object.fromEntries(Object.entries(STAGE_LABEL).map(([name, label]) => {
  const value = element("span", "", NONE);
  const word = tag("none yet", "");
  byId("stages").append(
    element("div", "stage", element("div", "label", label), element("div", "value", value, word)));
  return [name, { value, word }];
}));

function showStages(loop) {
  for (const stage of loop.stages) {
    const { value, word } = stages[stage.name];
    setText(value, age(stage.age_s));
    setText(word, stage.level === "none" ? "none yet" : stage.level, `tag ${STAGE_LEVEL[stage.level]}`);
    word.title = stage.lag_s == null ? "" : `lags ${number(stage.lag_s)} s, limit ${number(stage.limit_s)} s`;
  }
}

// ---- tables ----

const STATE_LEVEL = {
  promoted: "", gate_passed: "", published: "", candidate: "", canary: "warn",
  gate_held: "warn", rolled_back: "bad", quarantined: "bad",
};

function gateCell(view) {
  if (view.verdict == null) return cell(element("span", "dim", view.parent == null ? "base" : NONE), "wrap");
  if (view.verdict === "pass") return cell(element("span", "good", `pass, ${view.checks.length} checks`), "wrap");
  const words = view.checks.filter((check) => check.verdict !== "pass").map(checkWords).join("; ");
  const level = view.verdict === "fail" ? "bad" : "warn";
  return cell(element("span", "", element("span", level, view.verdict), ` ${words}`), "wrap");
}

function checkWords(check) {
  const interval = check.ci95 ? ` [${number(check.ci95[0], 3)}, ${number(check.ci95[1], 3)}]` : "";
  const why = check.why ? `, ${check.why}` : "";
  return `${check.name} ${number(check.value, 3)}${interval}, limit ${number(check.limit, 3)}, n ${number(check.num_samples)}${why}`;
}

function versionRow(view) {
  const state = view.live ? tag("live", "good") : tag(view.state.replace("_", " "), STATE_LEVEL[view.state]);
  state.title = view.reason;
  const served = view.feedback_to_served_s;
  const acceptance = view.rates.acceptance, reward = view.rates.reward_per_decision;
  return element("tr", view.live ? "live" : "",
    cell(version(view.policy_version)), cell(state), cell(clock(view.live_at ?? view.state_at)), gateCell(view),
    cell(bytes(view.delta_bytes), "n"),
    cell(view.delta_ratio == null ? NONE : `${number(view.delta_ratio, 1)} ×`, "n"),
    cell(view.swap_pause_ms == null ? NONE : `${number(view.swap_pause_ms, 1)} ms`, "n"),
    cell(served == null ? NONE : `${number(served, 1)} s`, "n"),
    cell(number(view.rates.num_decisions), "n"), cell(percent(acceptance), "n"), cell(signed(reward), "n"));
}

function ledgerRow(line) {
  const parts = Object.entries(line.outcomes).filter(([, n]) => n).map(([name, n]) => `${name.replaceAll("_", " ")} ${number(n)}`);
  const off = line.read - Object.values(line.outcomes).reduce((sum, n) => sum + n, 0);
  return element("tr", "", cell(line.node ? `${line.process} ${line.node}` : line.process), cell(line.kind),
    cell(number(line.read), "n"),
    cell(line.balanced ? tag("balanced", "good") : tag(`off by ${number(off)}`, "bad")),
    cell(parts.join(" + ") || NONE, "wrap"));
}

// Decisions that the learner must not use, the commonest reasons first.
function untrainableWords({ untrainable, num_decisions: decisions }) {
  const reasons = Object.entries(untrainable).sort(([, a], [, b]) => b - a);
  if (!decisions || !reasons.length) return "";
  const total = reasons.reduce((sum, [, n]) => sum + n, 0);
  const words = reasons.map(([reason, n]) => `${reason.replaceAll("_", " ")} ${number(n)}`).join(", ");
  return `; ${percent(total / decisions)} of decisions not to be learned from: ${words}`;
}

function nodeRow(node, live) {
  const behind = node.versions_behind ? `${node.versions_behind} behind` : "ahead of live";
  const level = { serving: "good", staging: "warn", refused: "bad" }[node.state];
  const state = node.refusing ? tag("update refused", "bad") : tag(node.state, level);
  state.title = node.detail;
  const refusal = node.refused_s == null ? NONE
    : element("span", node.refusing ? "bad" : "dim", `${age(node.refused_s)}: ${node.refusal}`);
  return element("tr", "", cell(node.node), cell(version(node.policy_version)), cell(state),
    cell(node.policy_version === live ? "up to date" : behind), cell(number(node.num_running), "n"),
    cell(number(node.num_waiting), "n"), cell(age(node.age_s)), cell(refusal, "wrap"));
}

function showTables(loop) {
  const { counts, traffic } = loop;
  setText(byId("counts"), `${counts.published} trained, ${counts.shipped} shipped, ${counts.held} held, ${counts.rolled_back} rolled back`);
  fillTable("versions", loop.versions.slice(0, 30).map(versionRow), "no version yet");
  fillTable("ledger", loop.ledger.map(ledgerRow), "no process has reported yet");
  fillTable("nodes", loop.nodes.map((node) => nodeRow(node, loop.live_version)), "no node has reported yet");
  setText(byId("repeats"), `${number(traffic.num_episodes_train)} episodes to train on, ${number(traffic.num_episodes_held_out)} held out${untrainableWords(traffic)}`);
}

// ---- polling ----

function showLoop(loop) {
  for (const show of [showHealth, showTiles, showStages, showCharts, showTables]) show(loop);
}

let lastAnswer = null;

async function poll() {
  try {
    const reply = await fetch("/api/loop", { signal: AbortSignal.timeout(TIMEOUT_MS) });
    if (!reply.ok) throw new Error(`status ${reply.status}`);
    const loop = await reply.json();
    lastAnswer = Date.now();
    setText(byId("connection"), clock(loop.at), "");
    document.body.classList.remove("lost");
    showLoop(loop);
  } catch (error) {
    const since = lastAnswer == null ? "" : `, numbers are ${Math.round((Date.now() - lastAnswer) / 1000)} s old`;
    setText(byId("connection"), `connection lost, retrying${since}`, "bad");
    setText(byId("health"), "unknown", "pill");
    setText(byId("problems"), lastAnswer == null ? "" : "below are the last numbers received");
    document.body.classList.add("lost");
    console.warn("poll failed", error);
  }
  setTimeout(poll, POLL_MS);
}

poll();
