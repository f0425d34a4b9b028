// Retention: the cases that the Python client runs too.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { findPlace, measureRetention, shareOf } from "../src/index.js";

interface Case {
  accepted: string;
  place: string;
  four_gram: number;
  no_revert: number;
  arc_chars: number;
  total_chars: number;
  token_distance: number;
  share: number;
}

test("the measures are those of the shared cases", () => {
  const file = process.env["RETENTION_CASES"];
  assert.ok(file, "RETENTION_CASES: expected the path of the shared cases");
  const cases = JSON.parse(readFileSync(file, "utf8")) as Case[];
  assert.ok(cases.length > 10);
  const round = (numbers: number[]): number[] => numbers.map((n) => Math.round(n * 1e9) / 1e9);
  for (const one of cases) {
    const found = measureRetention(one.accepted, one.place);
    const { fourGram, noRevert, arcChars, totalChars, tokenDistance } = found;
    assert.deepEqual(
      round([fourGram, noRevert, arcChars, totalChars, tokenDistance, shareOf(found)]),
      round([
        one.four_gram, one.no_revert, one.arc_chars, one.total_chars, one.token_distance, one.share,
      ]),
      JSON.stringify(one),
    );
  }
});

test("a place is found between its first and last match", () => {
  const accepted = "total = sum(prices)";
  assert.equal(findPlace(accepted, "x = 1\ntotal = max(prices)\n"), "total = max(prices)");
  assert.equal(findPlace(accepted, `🙂 ${accepted} 🙂`), accepted);
  assert.equal(findPlace(accepted, "nothing"), "");
});
