// The service: requests, latency, events, cold users and long-tail items over the last hour.

import { get } from "./api.js";
import { chart } from "./charts.js";
import { count, h, percent, problem, say } from "./dom.js";
import { section, tiles } from "./run.js";

const REFRESH = 10_000;

export function serviceView(root) {
  let timer = null;
  const show = async (isRefresh = false) => {
    clearTimeout(timer);
    try {
      const found = await get("/v1/page/metrics");
      root.replaceChildren(section("Since the start of the server", totals(found)), section("The last hour", ...series(found)));
      if (!isRefresh) say(`${count(found.total.requests)} requests since the start of the server`);
    } catch (error) {
      root.replaceChildren(problem(error));
    }
    // Only while it is looked at.
    timer = setTimeout(() => root.hidden || show(true), REFRESH);
  };
  return show;
}

const milliseconds = (seconds) => (seconds == null ? "–" : `${(1000 * seconds).toFixed(seconds < 0.01 ? 1 : 0)}\u00a0ms`);

function totals({ total }) {
  return tiles([
    ["Requests", count(total.requests)], ["Latency, median", milliseconds(total.median)], ["Latency, 95th percentile", milliseconds(total.p95)],
    ["Events received", count(total.events)], ["Users served", count(total.users)], ["Cold users", count(total.cold)],
    ["Long-tail share", total.tail == null ? "–" : percent(total.tail)],
  ]);
}

function series({ seconds, now, steps }) {
  const x = steps.map((step) => (step.time - now) / 60);
  const line = (name, value) => ({ name, x, y: steps.map(value) });
  const times = (factor, value) => (value == null ? null : factor * value);
  const options = { xLabel: "minutes", fromZero: true };
  return [
    h("div", { class: "columns even" },
      chart(`Requests in ${seconds} s`, [line("requests", (step) => step.requests)], options),
      chart("Latency in ms", [line("median", (step) => times(1000, step.median)), line("95th percentile", (step) => times(1000, step.p95))], options),
      chart(`Events in ${seconds} s`, [line("events", (step) => step.events)], options),
      chart(`Users served in ${seconds} s`, [line("all", (step) => step.users), line("cold", (step) => step.cold)], options),
      chart("Share of long-tail items in %", [line("long tail", (step) => times(100, step.tail))], options)),
    h("p", { class: "soft" }, "Requests are those to the public endpoints under /v1. Cold users have no history in training. The long tail is the least popular items, which together have a third of the training interactions. /metrics has the same counters for Prometheus."),
  ];
}
