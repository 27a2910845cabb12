// The negatives lens: what training pushed away from this user, how likely that was wrong, and with which weight.

import { get } from "./api.js";
import { chart } from "./charts.js";
import { combobox, users } from "./combobox.js";
import { bar, count, h, latest, named, paused, percent, problem, say, scores } from "./dom.js";

const STEPS = 100;
const SOURCES = {
  bounds: "The share is not known here: this is the geometric mean of its two bounds.",
  run: "The model was trained with this share.",
  chosen: "You chose this share.",
};
const CURVES = {
  unobserved: "no event in training (this user)",
  positives: "held out, so liked (all users, on this user's scale)",
  training: "in training (this user)",
};

export function negativesView(root, { go }) {
  const search = combobox({ label: "Search a user by id", path: "/v1/users", read: users, taken: (user) => go("negatives", user) });
  const slider = h("input", { type: "range", id: "omega", min: 0, max: STEPS, step: 1 });
  const label = h("output", { for: "omega", class: "number" });
  const note = h("p", { class: "soft" });
  const summary = h("p", {});
  const weights = h("p", { class: "soft" });
  const table = h("div", {});
  const curves = h("div", {});
  root.append(
    search.element,
    h("div", { class: "columns even" },
      h("section", { class: "card", "aria-label": "False negatives" }, h("h2", {}, "Which negatives may be liked after all?"),
        h("p", { class: "soft" }, "Training treats items without an event as disliked: they are its negatives. Some of them this user would like (false negatives)."), summary,
        h("p", {}, h("label", { for: "omega" }, "Share of liked items among those without an event (ω): "), label), slider, note),
      h("section", { class: "card", "aria-label": "Distribution of scores" }, curves)),
    h("section", { class: "card", "aria-label": "Hardest negatives" }, h("h2", {}, "Hardest negatives: the highest scores without an event"), weights, table),
  );
  let current = null;
  let bounds = null;

  const omegaAt = (step) => bounds.least * (bounds.most / bounds.least) ** (step / STEPS);
  const stepOf = (omega) => (bounds.most > bounds.least ? Math.round((STEPS * Math.log(omega / bounds.least)) / Math.log(bounds.most / bounds.least)) : 0);

  const show = latest(async (isLast, user, omega) => {
    current = user;
    search.input.value = user;
    let found;
    try {
      found = await get("/v1/page/lens", { user, k: 20, ...(omega != null && { omega }) });
    } catch (error) {
      if (isLast()) table.replaceChildren(problem(error));
      return;
    }
    if (!isLast()) return;
    bounds = found.omega;
    if (omega == null) slider.value = Math.min(STEPS, Math.max(0, stepOf(bounds.value)));
    label.textContent = percent(bounds.value, 2);
    slider.setAttribute("aria-valuetext", percent(bounds.value, 2));
    note.textContent = `${SOURCES[bounds.source]} The data allow ${percent(bounds.least, 2)} (so much was held out) to ${percent(bounds.most, 2)} (more would give probabilities above 1).`;
    summary.textContent = `Of ${count(found.unobserved)} items without an event of user ${user}, about ${found.expected.toFixed(found.expected < 10 ? 1 : 0)} are liked.`;
    weights.textContent = found.weights
      ? `Weight in training: the share of this user's gradient that lowers the item's score, by ${found.weights.stated}. The effective number of negatives is ${count(Math.round(found.weights.effective))} of ${count(found.unobserved)}.`
      : "This model's loss does not weigh its negatives by their scores, so no weights are shown.";
    table.replaceChildren(rowsOf(found));
    const names = Object.keys(CURVES).filter((name) => found.curves[name]);
    curves.replaceChildren(chart("Distribution of scores", names.map((name) => ({ name: CURVES[name], x: found.grid, y: found.curves[name] })), { area: true, fromZero: true, xLabel: "score" }),
      h("p", { class: "soft" }, "Where held-out items are frequent compared with items without an event, a negative is likely liked: the probability is ω·p⁺(s)/p(s), at most 1."));
    say(`${found.items.length} hardest negatives of user ${user}, ω ${percent(bounds.value, 2)}`);
  });
  slider.addEventListener("input", paused(() => bounds && show(current, omegaAt(Number(slider.value))), 80));
  return (user) => show(user, null);
}

function rowsOf(found) {
  const cell = (label, ...children) => h("td", { class: "number", "data-label": label }, ...children);
  const most = Math.max(...found.items.map((entry) => entry.share ?? 0), 1e-12);
  const scored = scores(found.items);
  const rows = found.items.map((entry) =>
    h("tr", {},
      h("td", {}, h("span", {}, named(entry), " ", entry.held_out && h("span", { class: "tag warn" }, "held out: certainly liked"))),
      cell("Score", scored(entry)),
      cell("Probability of being liked", h("span", {}, bar(entry.probability, true), ` ${percent(entry.probability)}`)),
      entry.share != null && cell("Weight in training", h("span", {}, bar(entry.share / most), ` ${percent(entry.share, 2)}`))));
  const head = ["Item", "Score", "Probability of being liked", ...(found.weights ? ["Weight in training"] : [])];
  return h("table", { class: "stack" }, h("thead", {}, h("tr", {}, head.map((text, k) => h("th", { class: k ? "number" : "", scope: "col" }, text)))), h("tbody", {}, rows));
}
