// The server's endpoints. Errors are problem details, and their `detail` says what to do.

import { byId } from "./dom.js";

const KEY = "hdccf-key";
let asking = null;

export const get = (path, query = {}) => call(`${path}?${new URLSearchParams(query)}`);
export const post = (path, body) =>
  call(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });

async function call(path, options = {}) {
  const key = sessionStorage.getItem(KEY);
  let answer;
  try {
    // Relative, so that the page also works below a path of a proxy.
    answer = await fetch(`.${path}`, { ...options, headers: { ...options.headers, ...(key && { "X-API-Key": key }) } });
  } catch {
    throw new Error("The server does not answer; is hdccf serve still running?");
  }
  if (answer.status === 401) {
    await askForKey();
    return call(path, options);
  }
  const text = await answer.text();
  let found;
  try {
    found = JSON.parse(text, keepLongIds);
  } catch {
    throw new Error(`The server answered ${answer.status} without saying why.`);
  }
  if (!answer.ok) throw new Error(found.detail ?? `The server answered ${answer.status}.`);
  return found;
}

// Ids beyond 2^53 would lose their last digits as numbers; the server takes texts as well.
function keepLongIds(name, value, context) {
  const isId = name === "item" || name === "user" || name === "id";
  return isId && typeof value === "number" && !Number.isSafeInteger(value) && context?.source ? context.source : value;
}

function askForKey() {
  asking ??= new Promise((resolve) => {
    const dialog = byId("key-dialog");
    dialog.addEventListener(
      "close",
      () => {
        sessionStorage.setItem(KEY, byId("key").value);
        asking = null;
        resolve();
      },
      { once: true },
    );
    dialog.showModal();
  });
  return asking;
}
