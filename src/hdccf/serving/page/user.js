// A known user: the model's recommendations, and the history beside them, on a phone below.

import { get } from "./api.js";
import { attributesPlace, describe, filterControl } from "./attributes.js";
import { combobox, users } from "./combobox.js";
import { count, h, latest, named, problem, say } from "./dom.js";
import { recommendations } from "./listing.js";

const K = 10;

export function userView(root, { go, addToTaste }) {
  const search = combobox({ label: "Search a user by id", path: "/v1/users", read: users, taken: (user) => go("user", user) });
  const history = h("div", {});
  const list = h("div", {});
  const title = h("h2", {}, "Recommendations");
  // The popularity dial: the run's own setting until it is moved.
  let popularity = null;
  let shown = null;
  const setting = h("span", { class: "number soft" }, "");
  const filters = filterControl(() => shown !== null && redial(shown));
  const dial = h("input", { type: "range", min: "-1", max: "1", step: "0.05", "aria-label": "Popularity", title: "Left: more of what is popular. Right: more of what is particular to this user." });
  dial.addEventListener("input", () => {
    popularity = Number(dial.value);
    if (shown !== null) redial(shown);
  });
  root.append(
    search.element,
    h("div", { class: "columns first-wide" },
      h("section", { class: "card", "aria-label": "Recommendations" }, title,
        h("label", { class: "line dial" }, h("span", { class: "soft number" }, "Popular"), dial, h("span", { class: "soft number" }, "Personal"), setting),
        filters.element,
        list),
      h("section", { class: "card", "aria-label": "History" }, h("h2", {}, "History"), history)),
  );

  const showHistory = async (user, isLast) => {
    const found = await get("/v1/page/history", { user, limit: 50 });
    if (!isLast()) return;
    const rows = found.items.map((entry) =>
      h("li", { class: "line" },
        h("div", { class: "grow" }, named(entry), " ", entry.held_out && h("span", { class: "tag", title: "Not used in training" }, "held out"), " ", entry.fresh && h("span", { class: "tag", title: "Since the training" }, "new"), attributesPlace(entry.item)),
        h("span", { class: "soft number" }, entry.time ?? "")));
    const more = found.events > rows.length ? `, the latest ${rows.length} here` : "";
    history.replaceChildren(h("p", { class: "soft" }, `${count(found.events)} events${more}, the latest first`), h("ol", { class: "list" }, rows));
    await describe(history);
  };
  const showList = async (user, isLast) => {
    const found = await recommendations({ user }, K, { onPick: addToTaste, isLast, popularity, filter: filters.value() });
    if (!found) return;
    dial.value = String(found.popularity);
    setting.textContent = found.popularity.toFixed(2);
    list.replaceChildren(found.element);
    say(`${found.items.length} recommendations for user ${user}`);
  };
  const redial = latest((isLast, user) => showList(user, isLast).catch((error) => isLast() && list.replaceChildren(problem(error))));
  return latest(async (isLast, user) => {
    shown = user;
    search.input.value = user;
    title.textContent = `Recommendations for user ${user}`;
    await Promise.all([
      showHistory(user, isLast).catch((error) => isLast() && history.replaceChildren(problem(error))),
      showList(user, isLast).catch((error) => isLast() && list.replaceChildren(problem(error))),
    ]);
  });
}
