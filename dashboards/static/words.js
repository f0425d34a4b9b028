// Numbers as words, and elements that hold text and never HTML.

export const NONE = "–";
export const number = (x, digits = 0) =>
  x == null ? NONE : x.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
export const percent = (x) => (x == null ? NONE : `${number(100 * x, 1)} %`);
export const signed = (x, digits = 3) => (x == null ? NONE : `${x < 0 ? "−" : "+"}${number(Math.abs(x), digits)}`);
export const bytes = (x) =>
  x == null ? NONE : x < 1000 ? `${x} B` : x < 1e6 ? `${number(x / 1e3, 1)} kB` : `${number(x / 1e6, 2)} MB`;
export const version = (v) => (v == null ? NONE : `v${v}`);
export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

export function age(seconds) {
  if (seconds == null) return NONE;
  if (seconds < 1) return "now";
  if (seconds < 120) return `${Math.floor(seconds)} s ago`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ago`;
  return `${Math.floor(seconds / 3600)} h ago`;
}

export function element(tag, className, ...children) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  made.append(...children.filter((child) => child != null).map((c) => (c instanceof Node ? c : String(c))));
  return made;
}

export function setText(node, text, className) {
  if (node.textContent !== text) node.textContent = text;
  if (className != null && node.className !== className) node.className = className;
}
