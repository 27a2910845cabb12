// Elements without a framework: h("p", {class: "soft"}, "text", child). Text is never read as HTML.

export function h(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value === true) made.setAttribute(name, "");
    else if (value !== false && value != null) made.setAttribute(name, value);
  }
  made.append(...children.flat().filter((child) => child != null && child !== false));
  return made;
}

export const byId = (id) => document.getElementById(id);

const whole = new Intl.NumberFormat("en");
export const count = (value) => whole.format(value);
export const percent = (value, digits = 1) => `${(100 * value).toFixed(digits)}\u00a0%`;
export const decimals = (value, digits = 3) => (value == null ? "" : value.toFixed(digits));
// Scores of a list with the same digits: three decimals, more only where all are so small that these would be 0.
export function scores(entries) {
  const most = Math.max(...entries.map((entry) => Math.abs(entry.score)));
  const digits = most > 0 && most < 0.01 ? Math.min(12, 2 - Math.floor(Math.log10(most))) : 3;
  return (entry) => decimals(entry.score, digits);
}
export const figure = (value) => (value == null ? "" : Math.abs(value) >= 100 ? count(Math.round(value)) : Number(value.toPrecision(4)).toString());
export const named = (entry) => entry.title ?? `item ${entry.item ?? entry.id}`;

// A part of an address as text; a mistyped one stays as it is.
export function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

// Said to those who do not see what changed.
export function say(text) {
  byId("status").textContent = text;
}

// A part that is the size of its share, for the eye; the number stands beside it.
export function bar(share, other = false) {
  const width = Math.max(0, Math.min(1, share)) * 100;
  return h("span", { class: "track", "aria-hidden": "true" }, h("span", { class: other ? "bar other" : "bar", style: `width:${width}%` }));
}

// What a server could not answer, in its own words, where the answer would be.
export function problem(error) {
  return h("p", { class: "problem", role: "alert" }, error.message);
}

// Calls once those who type have paused.
export function paused(call, milliseconds = 150) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), milliseconds);
  };
}

// Of several calls under way only the last may show its answer.
export function latest(call) {
  let last = 0;
  return async (...values) => {
    const own = ++last;
    return call(() => own === last, ...values);
  };
}
