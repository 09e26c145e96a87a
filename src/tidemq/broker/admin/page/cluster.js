// The nodes of a cluster, on the overview of one of them.

import { ask } from "./api.js";
import { count, date, make, seconds, table } from "./dom.js";

const NO_ESTIMATE = { staying_behind: "stays behind", stalled: "no progress" };

export async function showCluster(root) {
  const { name, members, degraded } = await ask("GET", "/api/v1/cluster");
  if (!name) {
    root.replaceChildren();
    return;
  }
  const rows = members.map((each) => [
    each.is_self ? make("strong", {}, each.name) : each.name,
    make("span", { className: each.state === "alive" ? "" : "bad" }, each.state), date(each.since),
    make("span", { className: "mono" }, each.address), count(each.behind_records), seconds(each.behind_s),
    NO_ESTIMATE[each.progress] ?? seconds(each.left_s)]);
  root.replaceChildren(make("h2", {}, "Cluster"),
    table(`Nodes of ${name}`,
      [["Node"], ["State"], ["Since"], ["Address"], ["Behind", "number"], ["For", "number"], ["Left", "number"]], rows),
    ...degraded.map((text) => make("p", { className: "bad" }, text)));
}
