// How much of an accepted text is still there. The measures are those of the Python client, whose
// `retention.py` names their sources; both run the cases in tests/serving/clients/retention_cases.json.

const MIN_MATCH_CHARACTERS = 4; // shorter matches are chance: any two texts share single letters
const REWRITE_DISTANCE = 0.33;
const MAX_REWRITTEN_SHARE = 0.5;

/** What is left of an accepted text. Characters are code points. */
export interface Retention {
  /** Share in [0, 1] of the accepted text's 4-grams of characters that its place still holds. */
  readonly fourGram: number;
  /** 1 minus the share in [0, 1] taken back towards the text before, where nothing stood. */
  readonly noRevert: number;
  /** Accepted and retained: characters that were not touched, of `totalChars` accepted. */
  readonly arcChars: number;
  readonly totalChars: number;
  /** Edit distance in tokens between accepted text and what its place holds now, a token. */
  readonly tokenDistance: number;
}

/** noRevert * arcChars / totalChars in [0, 1], at most 0.5 for a rewrite. */
export function shareOf(measured: Retention): number {
  const share = (measured.noRevert * measured.arcChars) / measured.totalChars;
  return measured.tokenDistance > REWRITE_DISTANCE ? Math.min(share, MAX_REWRITTEN_SHARE) : share;
}

/** `place`: the text that stands now where `accepted` was put, between its tracked ends. */
export function measureRetention(accepted: string, place: string): Retention {
  const old = [...accepted];
  const now = [...place];
  if (now.length === 0) {
    return { fourGram: 0, noRevert: 0, arcChars: 0, totalChars: old.length, tokenDistance: 1 };
  }
  const kept = matches(old, now).reduce((sum, match) => sum + match.size, 0);
  return {
    fourGram: fourGramOverlap(old, now),
    noRevert: Math.min(1, now.length / old.length),
    arcChars: kept,
    totalChars: old.length,
    tokenDistance: tokenDistance(accepted, place),
  };
}

/**
 * Where `accepted` is in `around`, for who cannot track it: the first to the last match.
 * `around` is the document near the place. What was changed at the very ends counts as gone.
 */
export function findPlace(accepted: string, around: string): string {
  const found = matches([...accepted], [...around]);
  const first = found.at(0);
  const last = found.at(-1);
  if (first === undefined || last === undefined) return "";
  return [...around].slice(first.now, last.now + last.size).join("");
}

interface Match {
  old: number;
  now: number;
  size: number;
}

/** Common parts in order, found longest first (Ratcliff and Obershelp, 1988). */
function matches(old: readonly string[], now: readonly string[]): Match[] {
  const whole = now.join("").indexOf(old.join(""));
  if (whole !== -1) {
    return [{ old: 0, now: [...now.join("").slice(0, whole)].length, size: old.length }];
  }
  const found: Match[] = [];
  const pieces: [number, number, number, number][] = [[0, old.length, 0, now.length]];
  for (let piece = pieces.pop(); piece !== undefined; piece = pieces.pop()) {
    const [oldStart, oldEnd, nowStart, nowEnd] = piece;
    const match = longest(old, now, oldStart, oldEnd, nowStart, nowEnd);
    if (match.size < MIN_MATCH_CHARACTERS) continue; // what is left of it has none either
    found.push(match);
    pieces.push([oldStart, match.old, nowStart, match.now]);
    pieces.push([match.old + match.size, oldEnd, match.now + match.size, nowEnd]);
  }
  return found.sort((a, b) => a.old - b.old);
}

/** The longest common part of both ranges; of several the earliest in `old`, then in `now`. */
function longest(
  old: readonly string[],
  now: readonly string[],
  oldStart: number,
  oldEnd: number,
  nowStart: number,
  nowEnd: number,
): Match {
  let best: Match = { old: oldStart, now: nowStart, size: 0 };
  let previous = new Uint32Array(nowEnd + 1); // size of the match that ends before each place
  for (let i = oldStart; i < oldEnd; i++) {
    const current = new Uint32Array(nowEnd + 1);
    for (let j = nowStart; j < nowEnd; j++) {
      if (old[i] !== now[j]) continue;
      const size = (previous[j] ?? 0) + 1;
      current[j + 1] = size;
      if (size > best.size) best = { old: i - size + 1, now: j - size + 1, size };
    }
    previous = current;
  }
  return best;
}

function fourGramOverlap(old: readonly string[], now: readonly string[]): number {
  const grams = fourGrams(old);
  const left = fourGrams(now);
  let total = 0;
  let shared = 0;
  for (const [gram, count] of grams) {
    total += count;
    shared += Math.min(count, left.get(gram) ?? 0);
  }
  return total === 0 ? Number(old.join("") === now.join("")) : shared / total;
}

function fourGrams(text: readonly string[]): Map<string, number> {
  const grams = new Map<string, number>();
  for (let i = 0; i + 4 <= text.length; i++) {
    const gram = text.slice(i, i + 4).join("");
    grams.set(gram, (grams.get(gram) ?? 0) + 1);
  }
  return grams;
}

/** Levenshtein distance in words and signs, divided by the longer one's count. */
function tokenDistance(accepted: string, place: string): number {
  const old = tokens(accepted);
  const now = tokens(place);
  let row = Array.from({ length: now.length + 1 }, (_, j) => j);
  old.forEach((token, i) => {
    const next = [i + 1];
    now.forEach((other, j) => {
      const replaced = at(row, j) + Number(token !== other);
      next.push(Math.min(replaced, at(row, j + 1) + 1, at(next, j) + 1));
    });
    row = next;
  });
  return at(row, now.length) / Math.max(old.length, now.length, 1);
}

function at(row: readonly number[], index: number): number {
  return row[index] ?? 0;
}

function tokens(text: string): string[] {
  return text.match(/[\p{L}\p{N}_]+|[^\p{L}\p{N}_\s]/gu) ?? [];
}
