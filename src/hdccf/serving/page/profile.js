// A profile from scratch: items are picked, and the recommendations follow at once. Nothing is kept.

import { get } from "./api.js";
import { filterControl } from "./attributes.js";
import { combobox, items } from "./combobox.js";
import { decoded, h, latest, named, problem, say } from "./dom.js";
import { recommendations } from "./listing.js";

const K = 10;
const STARTERS = 12;

export function profileView(root, { go, titles }) {
  let picked = [];
  const chips = h("ul", { class: "chips", "aria-label": "Your profile" });
  const list = h("div", {});
  const starters = h("ul", { class: "chips" });
  const change = (entries) => go("profile", entries.map((entry) => encodeURIComponent(entry.item)).join(","));
  const add = (entry) => {
    titles.set(String(entry.item), entry.title);
    if (!picked.some((one) => String(one.item) === String(entry.item))) change([...picked, entry]);
  };
  let shown = "";
  const filters = filterControl(() => show(shown));
  const search = combobox({ label: "Search an item by title, and add it", path: "/v1/items", read: items, taken: add, clears: true });
  root.append(
    search.element,
    h("div", { class: "columns" },
      h("section", { class: "card", "aria-label": "Your profile" },
        h("h2", {}, "Your profile"),
        h("p", { class: "soft" }, "Pick what you like, the last the latest: the model treats you as a new user with this history."),
        chips,
        h("h3", {}, "Popular items"),
        starters),
      h("section", { class: "card", "aria-label": "Recommendations for your profile" }, h("h2", {}, "Recommendations for your profile"), filters.element, list)),
  );
  get("/v1/items", { q: "", limit: STARTERS })
    .then((found) => starters.replaceChildren(...found.items.map((entry) =>
      h("li", {}, h("button", { class: "small", onclick: () => add(entry) }, `+ ${named(entry)}`)))))
    .catch((error) => starters.replaceChildren(problem(error)));

  const show = latest(async (isLast, joined) => {
    shown = joined;
    picked = joined.split(",").filter(Boolean).map(decoded).map((item) => ({ item, title: titles.get(item) }));
    chips.replaceChildren(...picked.map((entry) =>
      h("li", {}, h("button", { class: "small", "aria-label": `Remove ${named(entry)}`, onclick: () => change(picked.filter((one) => one !== entry)) }, `${named(entry)} ×`))));
    nameUnnamed(isLast, joined);
    try {
      const found = await recommendations({ had: picked.map((entry) => entry.item) }, K, { onPick: add, isLast, filter: filters.value() });
      if (!found) return;
      for (const entry of found.items) titles.set(String(entry.item), entry.title);
      list.replaceChildren(found.element);
      say(`${found.items.length} recommendations for a profile of ${picked.length} items${found.items.length ? `; first ${named(found.items[0])}` : ""}`);
    } catch (error) {
      if (isLast()) list.replaceChildren(problem(error));
    }
  });
  // A link has ids only.
  const nameUnnamed = async (isLast, joined) => {
    const unnamed = picked.filter((entry) => !titles.has(entry.item));
    if (!unnamed.length) return;
    const found = await Promise.all(unnamed.map((entry) => get("/v1/items", { q: entry.item, limit: 1 }).catch(() => ({ items: [] }))));
    unnamed.forEach((entry, k) => {
      const first = found[k].items[0];
      titles.set(entry.item, first && String(first.item) === entry.item ? first.title : null);
    });
    if (isLast()) show(joined);
  };
  return { show, add };
}
