import { ask } from "./api.js";
import { showCluster } from "./cluster.js";
import { bytes, count, date, make, seconds, table } from "./dom.js";
import { history, onEvent } from "./live.js";
import uPlot from "./uPlot.esm.js";

const ALARMS_MS = 5000;

const TILES = {
  "Connections": (now) => count(now.connections),
  "Sessions": (now) => count(now.sessions),
  "Messages in": (now) => `${count(now.per_s.messages_received)}/s`,
  "Messages out": (now) => `${count(now.per_s.messages_sent)}/s`,
  "Waiting in memory": (now) => count(now.queued_messages),
  "Oldest waits": (now) => seconds(now.oldest_queued_s),
  "Subscriptions": (now) => count(now.subscriptions),
  "Retained": (now) => count(now.retained),
  "Busiest reactor": (now) => `${Math.round(100 * Math.max(0, ...now.reactors.map((each) => each.load)))} %`,
  "Memory": (now) => [bytes(now.memory_used), now.memory_max ? ` of ${bytes(now.memory_max)}` : ""],
  "Store": (now) => [bytes(now.store_bytes), now.disk_free ? ` ${bytes(now.disk_free)} free` : ""],
  "Up for": (now) => seconds(now.uptime_s),
};

const CHARTS = [
  ["Messages a second", count, {
    in: (event) => event.per_s.messages_received,
    out: (event) => event.per_s.messages_sent,
  }],
  ["Latency: 99 % took at most", seconds, {
    "PUBLISH to PUBACK": (event) => event.seconds.publish_qos_1.p99,
    "in a queue": (event) => event.seconds.queued.p99,
    commit: (event) => event.seconds.commit.p99,
    "CONNECT to CONNACK": (event) => event.seconds.connect.p99,
  }],
  ["Messages waiting in memory", count, { waiting: (event) => event.queued_messages }],
  ["Dropped or refused a second", count, {
    "dropped or refused": (event) => Object.values(event.lost).reduce((sum, each) => sum + each.per_s, 0),
  }],
];

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function columns(series) {
  const times = history.map((event) => Date.parse(event.at) / 1000);
  return [times, ...Object.values(series).map((value) => history.map(value))];
}

function chart(root, [title, text, series], signal) {
  const [place, latest] = [make("div"), make("span", { className: "quiet" })];
  root.append(make("figure", {}, make("figcaption", {}, `${title} `, latest), place));
  let plot = null;
  const size = () => ({ width: Math.max(place.clientWidth, 200), height: 190 });
  const draw = () => {
    plot?.destroy();
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
    const times = (_, all) => all.map((time) => new Date(time * 1000).toLocaleTimeString("sv"));
    plot = new uPlot({
      ...size(),
      scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
      axes: [{ ...axis, space: 90, values: times }, { ...axis, size: 70, values: (_, all) => all.map(text) }],
      legend: { live: false },
      series: [{}, ...Object.keys(series).map((label, at) => ({
        label, stroke: colour(`--series-${at + 1}`), width: 2, points: { show: false },
      }))],
    }, columns(series), place);
  };
  draw();
  onEvent((now) => {
    plot.setData(columns(series));
    latest.textContent = Object.entries(series).map(([label, value]) => `${label} ${text(value(now))}`).join(", ");
  }, signal);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", draw, { signal });
  const resized = new ResizeObserver(() => plot.setSize(size()));
  resized.observe(place);
  signal.addEventListener("abort", () => { resized.disconnect(); plot.destroy(); });
}

function showAlarms(root, { active, ended }) {
  if (!active.length && !ended.length) {
    root.replaceChildren(make("p", {}, "There has been none."));
    return;
  }
  const rows = [...active, ...ended.slice(0, 10)].map((alarm) => [
    make("strong", { className: alarm.ended ? "" : "bad" }, alarm.name),
    alarm.text, date(alarm.began), alarm.ended ? date(alarm.ended) : "goes on"]);
  root.replaceChildren(table("Alarms: those that go on, and the last that have ended",
    [["Alarm"], ["What is wrong", "long"], ["Began"], ["Ended"]], rows));
}

function showLosses(root, lost) {
  if (!Object.keys(lost).length) {
    root.replaceChildren(make("p", {}, "Nothing was dropped or refused since the broker started."));
    return;
  }
  const rows = Object.entries(lost).map(([name, each]) => [name, count(each.total), count(each.per_s)]);
  root.replaceChildren(table("Dropped and refused, since the broker started",
    [["Counter"], ["Total", "number"], ["A second", "number"]], rows));
}

export async function show(root, signal) {
  const values = Object.keys(TILES).map((name) => [name, make("dd", {}, "–")]);
  const tiles = make("dl", { className: "tiles" },
    ...values.map(([name, value]) => make("div", {}, make("dt", {}, name), value)));
  const charts = make("div", { className: "charts" });
  const [alarms, cluster, losses] = [make("div"), make("div"), make("div")];
  root.append(tiles, make("h2", {}, "Alarms"), alarms, cluster, charts, make("h2", {}, "Losses"), losses);
  for (const each of CHARTS) chart(charts, each, signal);
  onEvent((now) => {
    for (const [name, value] of values) {
      const [first, more] = [TILES[name](now)].flat();
      value.replaceChildren(first, ...(more ? [make("small", {}, more)] : []));
    }
    showLosses(losses, now.lost);
  }, signal);
  while (!signal.aborted) {
    try {
      showAlarms(alarms, await ask("GET", "/alarms"));
      await showCluster(cluster);
    } catch (error) {
      if (error.status) throw error; // without a connection the line above says so
    }
    await new Promise((resolve) => setTimeout(resolve, ALARMS_MS));
  }
}
