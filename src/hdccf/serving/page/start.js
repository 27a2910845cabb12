// The start: what the model was trained on, how accurate it is, and how training went.

import { get } from "./api.js";
import { combobox, users } from "./combobox.js";
import { count, decimals, h, percent, problem, say } from "./dom.js";
import { section, tiles, validation } from "./run.js";

const MOST_OTHERS = 5;

export function startView(root, { go }) {
  const search = combobox({ label: "Search a user by id", path: "/v1/users", read: users, taken: (user) => go("user", user), clears: true });
  const place = h("div", {});
  root.append(search.element, place);
  let shown = false;
  return async () => {
    if (shown) return;
    shown = true;
    try {
      const [model, { runs }] = await Promise.all([get("/v1/model"), get("/v1/page/runs")]);
      const [own, ...others] = runs;
      place.replaceChildren(
        section("The model", tiles([
          ["Model", model.name], ["Users", count(model.users)], ["Items", count(model.items)], ["Events", count(model.events)], ...accuracy(own),
        ]), h("p", { class: "soft" }, measured(own))),
        h("div", { class: "columns even" },
          section("Training", validation(own)),
          section("Compared with other models", comparison(own, others))),
      );
      say(`Overview of run ${own.name}`);
    } catch (error) {
      shown = false;
      place.replaceChildren(problem(error));
    }
  };
}

// What `hdccf evaluate` kept; a ranking of all items before one of a sample.
const protocolOf = (run) => ["full", ...Object.keys(run.test ?? {})].find((name) => run.test?.[name]?.["ndcg@10"] != null);

function accuracy(run) {
  const protocol = protocolOf(run);
  if (protocol) {
    const values = run.test[protocol];
    return [
      ["NDCG@10", decimals(values["ndcg@10"])],
      ...(values["hr@10"] == null ? [] : [["HR@10", decimals(values["hr@10"])]]),
      ...(values["coverage@10"] == null ? [] : [["Coverage@10", percent(values["coverage@10"])]]),
    ];
  }
  const [name] = Object.keys(run.curves.validation ?? {});
  return run.result?.best_value != null && name ? [[`Validation, ${name}`, decimals(run.result.best_value)]] : [];
}

function measured(run) {
  const protocol = protocolOf(run);
  const evaluate = `hdccf evaluate on the run ${run.name} measures it on the test part.`;
  if (protocol) {
    const among = protocol === "full" ? "all items" : `${protocol} candidates`;
    return `Measured on the test part, ranked among ${among}. NDCG@10 and HR@10: how high, and how often, a held-out item is in the first ten (1 is best). Coverage@10: the share of all items that is in some user's first ten.`;
  }
  return run.result?.best_value != null && run.epochs.length
    ? `Measured on the validation part, which also chose the epoch, so it may be a little too high. ${evaluate}`
    : `The accuracy has not been measured. ${evaluate}`;
}

// Only what can be compared: the same data and split, ranked among all items.
function comparison(own, others) {
  const value = (run, name) => run.test?.full?.[name];
  const same = (run) => run.split.fingerprint != null && run.split.fingerprint === own.split.fingerprint;
  const byAccuracy = (a, b) => value(b, "ndcg@10") - value(a, "ndcg@10");
  const found = others.filter((run) => same(run) && value(run, "ndcg@10") != null).sort(byAccuracy).slice(0, MOST_OTHERS);
  if (value(own, "ndcg@10") == null || !found.length) {
    return h("p", { class: "soft" }, "Nothing to compare yet. Train another model on the same data in the same folder, and call hdccf evaluate on both.");
  }
  const names = [["NDCG@10", "ndcg@10", decimals], ["HR@10", "hr@10", decimals], ["Coverage@10", "coverage@10", (share) => (share == null ? "" : percent(share))]];
  const rows = [own, ...found].sort(byAccuracy).map((run) =>
    h("tr", {},
      h("td", {}, h("span", {}, `${run.name} (${run.model}) `, run === own && h("span", { class: "tag" }, "this model"))),
      names.map(([label, name, shown]) => h("td", { class: "number", "data-label": label }, shown(value(run, name))))));
  return [
    h("table", { class: "stack" },
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Run"), names.map(([label]) => h("th", { scope: "col", class: "number" }, label)))),
      h("tbody", {}, rows)),
    h("p", { class: "soft" }, "Runs in the same folder with the same data and split; hdccf compare says whether a difference is significant."),
  ];
}
