// A field that searches as one types, after the ARIA pattern: arrows move, Enter takes, Escape closes.

import { get } from "./api.js";
import { h, latest, paused, say } from "./dom.js";

let made = 0;

// `read` turns an answer into [{value, text, note}], `taken` gets the one that was chosen.
export function combobox({ label, path, read, taken, clears = false }) {
  const id = `search-${++made}`;
  let found = [];
  let active = -1;
  const list = h("ul", { role: "listbox", id: `${id}-list`, "aria-label": label, hidden: true });
  const input = h("input", {
    id,
    role: "combobox",
    autocomplete: "off",
    spellcheck: "false",
    "aria-expanded": "false",
    "aria-controls": `${id}-list`,
    "aria-autocomplete": "list",
  });

  const close = () => {
    list.hidden = true;
    active = -1;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  };
  const take = (place) => {
    const one = found[place];
    if (!one) return;
    input.value = clears ? "" : one.text;
    close();
    taken(one.value);
  };
  const move = (place) => {
    active = (place + found.length) % found.length;
    [...list.children].forEach((option, number) => option.setAttribute("aria-selected", String(number === active)));
    input.setAttribute("aria-activedescendant", `${id}-${active}`);
    list.children[active].scrollIntoView({ block: "nearest" });
  };
  const search = latest(async (isLast) => {
    let answer;
    try {
      answer = await get(path, { q: input.value.trim(), limit: 20 });
    } catch (error) {
      say(error.message);
      return;
    }
    if (!isLast() || document.activeElement !== input) return;
    found = read(answer);
    active = -1;
    list.replaceChildren(
      ...found.map((one, number) =>
        // Before the field loses the focus, which would close the list.
        h("li", { role: "option", id: `${id}-${number}`, "aria-selected": "false", onmousedown: (event) => (event.preventDefault(), take(number)) },
          h("span", {}, one.text), h("span", { class: "soft number" }, one.note)),
      ),
    );
    if (!found.length) list.append(h("li", { role: "option", "aria-disabled": "true", "aria-selected": "false" }, "Nothing found"));
    list.hidden = false;
    input.setAttribute("aria-expanded", "true");
    say(`${found.length} found`);
  });
  const typed = paused(search);

  input.addEventListener("input", typed);
  input.addEventListener("focus", () => (input.select(), search()));
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return close();
    if (event.key === "Enter") {
      event.preventDefault();
      return take(Math.max(active, 0));
    }
    const steps = { ArrowDown: active + 1, ArrowUp: Math.max(active, 0) - 1 };
    if (!(event.key in steps)) return undefined;
    event.preventDefault();
    if (list.hidden) return search();
    return found.length ? move(steps[event.key]) : undefined;
  });
  return { element: h("div", { class: "search" }, h("label", { for: id }, label), input, list), input };
}

export const users = (answer) => answer.users.map((one) => ({ value: String(one.user), text: String(one.user), note: `${one.events} events` }));
export const items = (answer) =>
  answer.items.map((one) => ({ value: one, text: one.title ?? String(one.item), note: `${one.users} users` }));
