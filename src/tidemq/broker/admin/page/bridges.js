import { ask } from "./api.js";
import { button, count, date, make, table } from "./dom.js";

export async function show(root) {
  const shown = make("div");
  const refresh = async () => {
    const { bridges } = await ask("GET", "/api/v1/bridges");
    const rows = bridges.map((each) => [each.name, each.state, make("span", { className: "mono" }, each.address),
      date(each.since), count(each.queued_messages), count(each.messages_out), count(each.messages_in),
      count(Object.values(each.dropped).reduce((sum, some) => sum + some, 0)), each.last_error]);
    shown.replaceChildren(table("Connections to other brokers",
      [["Name"], ["State"], ["Address"], ["Since"], ["Waiting", "number"], ["Out", "number"], ["In", "number"],
        ["Dropped", "number"], ["Last error", "long"]], rows, "There are none."));
  };
  root.append(make("div", { className: "buttons" }, button("Refresh", refresh, "plain")), shown);
  await refresh();
}
