// Attributes of items: beside their titles, and as filters of recommendations.

import { get } from "./api.js";
import { h } from "./dom.js";

let asked = null;
const choices = () => {
  asked ??= get("/v1/page/filters").catch(() => ((asked = null), { attributes: [], filters: [] }));
  return asked;
};

// A place for the attributes of an item, which `describe` fills.
export const attributesPlace = (item) => h("div", { class: "attributes soft", "data-item": String(item) });

// Fills the places within an element; where the run has no items file there is nothing to ask for.
export async function describe(element) {
  const places = [...element.querySelectorAll(".attributes")];
  if (!places.length || !(await choices()).attributes.length) return;
  const found = await get("/v1/page/attributes", places.map((place) => ["item", place.dataset.item]));
  const texts = new Map(found.items.map((entry) => [String(entry.item), entry.attributes]));
  for (const place of places) {
    const own = Object.entries(texts.get(place.dataset.item) ?? {});
    place.replaceChildren(...own.flatMap(([name, text], k) => [k ? " · " : "", h("span", { class: "attribute", title: name }, text)]));
  }
}

// A choice for each attribute that has few values; `value` is the filter of /v1/recommend, or null.
export function filterControl(onChange) {
  const element = h("div", { class: "filters", role: "group", "aria-label": "Filter", hidden: true });
  let controls = [];
  choices().then(({ filters }) => {
    controls = filters.map(({ name, values }) => {
      const select = h("select", { onchange: onChange }, h("option", { value: "" }, "any"), values.map((value, k) => h("option", { value: String(k) }, String(value))));
      element.append(h("label", {}, h("span", { class: "soft" }, name), select));
      return { name, values, select };
    });
    element.hidden = !controls.length;
  });
  const value = () => {
    const set = controls.filter(({ select }) => select.value !== "");
    return set.length ? Object.fromEntries(set.map(({ name, values, select }) => [name, values[Number(select.value)]])) : null;
  };
  return { element, value };
}
