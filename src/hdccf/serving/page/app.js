// The view is in the address: #/start, #/user/196, #/profile/50,181, #/run, #/service, #/negatives/196.

import { get } from "./api.js";
import { byId, count, decoded } from "./dom.js";
import { negativesView } from "./negatives.js";
import { runView } from "./run.js";
import { profileView } from "./profile.js";
import { serviceView } from "./service.js";
import { startView } from "./start.js";
import { userView } from "./user.js";

const TABS = ["start", "user", "profile", "run", "service"];
const VIEWS = [...TABS, "negatives"]; // the last is an expert's, behind the tabs
const OF_USER = ["user", "negatives"];
const tabs = TABS.map((name) => byId(`tab-${name}`));
const expert = byId("tab-negatives");
const state = { user: null, profile: "" };

function go(view, value = "") {
  const text = OF_USER.includes(view) ? encodeURIComponent(value) : value;
  const target = `#/${view}${text ? `/${text}` : ""}`;
  if (location.hash === target) show();
  else location.hash = target;
}

const titles = new Map();
const profile = profileView(byId("view-profile"), { go, titles });
const views = {
  start: startView(byId("view-start"), { go }),
  user: userView(byId("view-user"), {
    go,
    addToTaste: (entry) => {
      profile.add(entry);
    },
  }),
  profile: profile.show,
  negatives: negativesView(byId("view-negatives"), { go }),
  run: runView(byId("view-run")),
  service: serviceView(byId("view-service")),
};

function show() {
  const [, view = "start", value = ""] = location.hash.match(/^#\/(\w+)(?:\/(.*))?$/) ?? [];
  const name = VIEWS.includes(view) ? view : "start";
  if (value && OF_USER.includes(name)) state.user = decoded(value);
  if (name === "profile") state.profile = value;
  const focused = VIEWS.find((each) => byId(`view-${each}`).contains(document.activeElement));
  for (const each of VIEWS) byId(`view-${each}`).hidden = each !== name;
  tabs.forEach((tab, k) => {
    tab.setAttribute("aria-selected", String(TABS[k] === name));
    tab.tabIndex = TABS[k] === name || (k === 0 && !TABS.includes(name)) ? 0 : -1;
  });
  expert.setAttribute("aria-current", name === "negatives" ? "page" : "false");
  if (name === "negatives") byId("expert").open = true;
  // What had the focus is hidden now.
  if (focused && focused !== name) byId(`tab-${name}`).focus();
  if (name === "profile") views.profile(state.profile);
  else if (!OF_USER.includes(name)) views[name]();
  else if (state.user != null) views[name](state.user);
}

const valueOf = (name) => (name === "profile" ? state.profile : OF_USER.includes(name) ? (state.user ?? "") : "");
tabs.forEach((tab, k) => {
  tab.addEventListener("click", () => go(TABS[k], valueOf(TABS[k])));
  tab.addEventListener("keydown", (event) => {
    const to = { ArrowRight: k + 1, ArrowLeft: k - 1, Home: 0, End: TABS.length - 1 }[event.key];
    if (to == null) return;
    event.preventDefault();
    const next = (to + TABS.length) % TABS.length;
    tabs[next].focus();
    go(TABS[next], valueOf(TABS[next]));
  });
});
expert.addEventListener("click", () => go("negatives", valueOf("negatives")));
addEventListener("hashchange", show);

async function start() {
  const problem = byId("problem");
  try {
    const [model, found] = await Promise.all([get("/v1/model"), get("/v1/users", { q: "", limit: 20 })]);
    byId("about").textContent = `${model.name}, run ${model.run}: ${count(model.users)} users, ${count(model.items)} items, ${count(model.events)} events`;
    document.title = `hdccf: ${model.run}`;
    // A user with a typical history: the most active ones are the least typical.
    state.user ??= found.users.length ? String(found.users.at(-1).user) : null;
    problem.hidden = true;
  } catch (error) {
    problem.textContent = error.message;
    problem.hidden = false;
  }
  show();
}

start();
