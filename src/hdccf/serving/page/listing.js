// Recommendations with their reasons, and for each the items like it.

import { post } from "./api.js";
import { attributesPlace, describe } from "./attributes.js";
import { bar, h, named, percent, problem, scores } from "./dom.js";

// `target` is {user} or {had: […]}, as /v1/explain takes it.
export async function recommendations(target, k, { onPick, isLast, popularity, filter }) {
  const asked = "user" in target ? { users: [target.user], k } : { items: target.had, k };
  if (popularity != null) asked.popularity = popularity;
  if (filter != null) asked.filter = filter;
  const found = await post("/v1/recommend", asked);
  const [list] = found.lists;
  if (!isLast()) return null;
  if (!list.items.length) return { element: h("p", {}, filter == null ? "There is nothing left to recommend." : "No item to recommend fits the filter."), items: [], popularity: found.popularity };
  const reasonsOf = new Map();
  const scored = scores(list.items);
  const rows = list.items.map((entry, place) => {
    const reasons = h("div", { class: "reasons" });
    reasonsOf.set(String(entry.item), reasons);
    return h("li", {},
      h("div", { class: "line" },
        h("span", { class: "rank" }, String(place + 1)),
        h("div", { class: "grow" }, h("span", { class: "title" }, named(entry)), attributesPlace(entry.item)),
        h("span", { class: "number soft", title: "the model's score" }, scored(entry))),
      reasons,
      extras(entry, onPick));
  });
  const isPopular = list.source === "popular";
  const element = h("div", {}, isPopular && h("p", { class: "tag" }, "Popular items: there is no history to go by."), h("ol", { class: "list" }, rows));
  describe(element).catch(() => {});
  if (!isPopular) explain(target, list.items, reasonsOf, element, isLast);
  return { element, items: list.items, popularity: found.popularity };
}

async function explain(target, items, reasonsOf, element, isLast) {
  let found;
  try {
    found = await post("/v1/explain", { ...target, items: items.map((entry) => entry.item), top: 3 });
  } catch (error) {
    element.append(h("p", { class: "soft" }, `No reasons: ${error.message}`));
    return;
  }
  if (!isLast()) return;
  for (const item of found.items) {
    const because = item.because.filter((reason) => reason.share > 0);
    if (!because.length) continue;
    reasonsOf.get(String(item.item))?.replaceChildren(
      "because of ",
      ...because.flatMap((reason, place) => [place ? ", " : "", named(reason), " ", h("span", { class: "number" }, bar(reason.share), ` ${percent(reason.share, 0)}`)]),
    );
  }
  const agreement = found.agreement == null ? "" : ` It orders this user's candidates as the model does to Kendall's τ = ${found.agreement.toFixed(2)} (1 is the same order).`;
  element.append(h("p", { class: "soft" }, `Reasons are shares of a surrogate: ${found.surrogate}.${agreement}`));
}

function extras(entry, onPick) {
  const place = h("div", {});
  const title = named(entry);
  const toggle = h("button", { class: "small", "aria-expanded": "false", "aria-label": `Items like ${title}`, onclick: () => open() }, "Similar items");
  const open = async () => {
    if (toggle.getAttribute("aria-expanded") === "true") {
      toggle.setAttribute("aria-expanded", "false");
      place.replaceChildren();
      return;
    }
    toggle.setAttribute("aria-expanded", "true");
    try {
      place.replaceChildren(await similar(entry.item, onPick));
    } catch (error) {
      place.replaceChildren(problem(error));
    }
  };
  const pick = onPick && h("button", { class: "small", "aria-label": `Add ${title} to your profile`, onclick: () => onPick(entry) }, "Add to your profile");
  return h("div", { class: "reasons" }, h("div", { class: "line" }, toggle, pick), place);
}

export async function similar(item, onPick) {
  const found = await post("/v1/similar", { items: [item], k: 8 });
  const scored = scores(found.lists[0].similar);
  const rows = found.lists[0].similar.map((entry) =>
    h("li", { class: "line" },
      h("span", { class: "grow" }, entry.title ?? `item ${entry.id}`),
      h("span", { class: "number" }, scored(entry)),
      onPick && h("button", { class: "small", "aria-label": `Add ${entry.title ?? entry.id} to your profile`, onclick: () => onPick({ item: entry.id, title: entry.title }) }, "Add")));
  return h("div", {}, h("ul", { class: "list" }, rows), h("p", { class: "soft" }, `Compared by ${found.by}.`));
}
