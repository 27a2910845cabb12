// The run: how it was trained, on what, with which settings, and how it stands beside the others.

import { get } from "./api.js";
import { chart } from "./charts.js";
import { count, decimals, figure, h, percent, problem } from "./dom.js";

export function runView(root) {
  let shown = false;
  return async () => {
    if (shown) return;
    shown = true;
    try {
      const [run, beside] = await Promise.all([get("/v1/page/run"), get("/v1/page/runs")]);
      root.replaceChildren(
        h("div", { class: "columns even" }, section("This run", facts(run)), section("Data", data(run.data))),
        section("Training", ...trained(run)),
        section("Compared with other runs", comparison(beside)),
        section("Settings", settings(run.settings)),
      );
    } catch (error) {
      shown = false;
      root.replaceChildren(problem(error));
    }
  };
}

export const section = (title, ...children) => h("section", { class: "card", "aria-label": title }, h("h2", {}, title), ...children);
export const tiles = (entries) => h("dl", { class: "tiles" }, entries.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
const pairs = (entries) => h("dl", {}, entries.filter(([, value]) => value != null && value !== "").flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, String(value))]));

function facts(run) {
  const result = run.result;
  return pairs([
    ["Run", run.name], ["Model", run.model], ["Data", run.source.source], ["Split", run.split.method], ["Seed", run.seed],
    ["Best validation", result && figure(result.best_value)], ["Selected epoch", result && result.best_epoch],
    ["Training time", result && `${figure(result.seconds)} s`],
    ...Object.entries(run.test ?? {}).flatMap(([protocol, values]) => ["ndcg@10", "hr@10"].filter((name) => name in values).map((name) => [`Test ${label(protocol, name)}`, decimals(values[name])])),
  ]);
}

function data(found) {
  const of = (spread) => (spread.median == null ? null : `median ${spread.median}, ${spread.least} to ${count(spread.most)}`);
  return pairs([
    ["Users", count(found.users)], ["Items", count(found.items)], ["Training pairs", count(found.interactions)],
    ["Held out", `${count(found.parts.validation)} for validation, ${count(found.parts.test)} for testing`],
    ["Density", percent(found.density, 2)], ["Items per user", of(found.interactions_per_user)], ["Users per item", of(found.interactions_per_item)],
    ["First event", found.first?.slice(0, 10)], ["Last event", found.last?.slice(0, 10)],
  ]);
}

const linesOf = (run, kind, wanted = () => true) =>
  Object.entries(run.curves[kind] ?? {}).filter(([name]) => wanted(name)).map(([name, y]) => ({ name, x: run.epochs, y }));
const overEpochs = (run) => ({ xLabel: "epochs", marks: run.result ? [{ x: run.result.best_epoch, title: "selected epoch" }] : [] });
const noEpochs = () => h("p", { class: "soft" }, "This model is not trained in epochs.");

// The training curve: validation, or the loss where nothing was held out for it.
export function validation(run) {
  if (!run.epochs.length) return noEpochs();
  const lines = linesOf(run, "validation");
  return lines.length ? chart("Validation", lines, overEpochs(run)) : chart("Training loss", linesOf(run, "training"), overEpochs(run));
}

function trained(run) {
  if (!run.epochs.length) return [noEpochs()];
  const lines = (kind, wanted) => linesOf(run, kind, wanted);
  const options = overEpochs(run);
  const hard = (name) => name.startsWith("hardness");
  const charts = [
    ["Validation", lines("validation")],
    ["Training loss", lines("training")],
    ["Share of rows that the lower bound clips (Eq. 16)", lines("clipped"), { fromZero: true }],
    ["Negatives that share the gradient", lines("diagnostics", (name) => name === "effective-negatives"), { fromZero: true }],
    ["Hardness: quantiles of the negatives' scores", lines("diagnostics", hard)],
    ["Shares of negatives", lines("diagnostics", (name) => !hard(name) && name !== "effective-negatives"), { fromZero: true }],
  ];
  const made = charts.filter(([, some]) => some.length).map(([title, some, more]) => chart(title, some, { ...options, ...more }));
  return [h("div", { class: "columns even" }, made), h("p", { class: "soft" }, "The dashed line is the selected epoch.")];
}

// Metrics of the test part by protocol: a ranking of all items has no further name.
const METRICS = [["full", "ndcg@10"], ["full", "hr@10"], ["sampled", "ndcg@10"], ["sampled", "hr@10"]];
const label = (protocol, name) => (protocol === "full" ? name.toUpperCase() : `${name.toUpperCase()}, ${protocol}`);
const MOST_DRAWN = 6;

// Runs of other data or of another split are not comparable, and are shown only when asked for.
function comparison({ own, runs }) {
  const { fingerprint } = runs[0].split;
  const isComparable = (run) => run === runs[0] || (fingerprint != null && run.split.fingerprint === fingerprint);
  const others = runs.filter((run) => !isComparable(run)).length;
  const place = h("div", {});
  const all = h("input", { type: "checkbox", onchange: () => draw() });
  const draw = () => place.replaceChildren(...compared(all.checked ? runs : runs.filter(isComparable), own, isComparable));
  draw();
  return h("div", {},
    others > 0 && h("p", {}, h("label", {}, all, ` Show all runs (${others} of other data or another split)`)),
    place,
    h("p", { class: "soft" }, "Runs in the same folder. Test figures are there once hdccf evaluate RUN was called; hdccf compare says whether a difference is significant."));
}

function compared(runs, own, isComparable) {
  const chosen = new Set(runs.slice(0, MOST_DRAWN));
  const place = h("div", {});
  const draw = () => {
    const lines = runs.filter((run) => chosen.has(run)).flatMap((run) => {
      const [first] = Object.entries(run.curves.validation ?? {});
      return first ? [{ name: `${run.name} (${first[0]})`, x: run.epochs, y: first[1] }] : [];
    });
    place.replaceChildren(chart("Validation of the chosen runs", lines, { xLabel: "epochs" }));
  };
  const rows = runs.map((run) => {
    const box = h("input", { type: "checkbox", checked: chosen.has(run), "aria-label": `Draw ${run.name}`, onchange: () => {
      if (box.checked) chosen.add(run);
      else chosen.delete(run);
      draw();
    } });
    const cell = (name, value) => h("td", { class: "number", "data-label": name }, value);
    return h("tr", {},
      h("td", {}, h("span", {}, h("label", {}, box, ` ${run.name}`), " ", run.name === own && h("span", { class: "tag" }, "this model"), " ", !isComparable(run) && h("span", { class: "tag warn" }, "other data or split"))),
      h("td", { "data-label": "Model" }, run.model),
      cell("Best validation", run.result ? decimals(run.result.best_value) : "unfinished"),
      METRICS.map(([protocol, name]) => cell(`Test ${label(protocol, name)}`, decimals(run.test?.[protocol]?.[name]))),
      cell("Seconds", run.result ? figure(run.result.seconds) : ""));
  });
  const head = ["Run", "Model", "Best validation", ...METRICS.map(([protocol, name]) => `Test ${label(protocol, name)}`), "Seconds"];
  draw();
  return [place, h("table", { class: "stack runs" },
    h("thead", {}, h("tr", {}, head.map((text, k) => h("th", { scope: "col", class: k > 1 ? "number" : "" }, text)))),
    h("tbody", {}, rows))];
}

function settings(rows) {
  const table = (some) => h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Settings" }, h("table", {},
    h("thead", {}, h("tr", {}, ["Setting", "Value", "What it does"].map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, some.map((row) => h("tr", {}, h("td", {}, row.name), h("td", { class: "number" }, String(row.value ?? "none")), h("td", {}, row.meaning))))));
  const changed = rows.filter((row) => row.changed);
  return h("div", {},
    changed.length ? table(changed) : h("p", {}, "All settings have their defaults."),
    h("details", {}, h("summary", {}, `All ${rows.length} settings`), table(rows)));
}
