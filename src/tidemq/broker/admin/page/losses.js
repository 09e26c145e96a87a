import { ask } from "./api.js";
import { button, count, date, make, table } from "./dom.js";
import { link } from "./client.js";

export async function show(root) {
  const shown = make("div");
  const refresh = async () => {
    const { drops } = await ask("GET", "/api/v1/drops");
    const rows = drops.map((each) => [each.client_id ? link(each.client_id) : "some client", each.cause,
      count(each.messages), date(each.last)]);
    shown.replaceChildren(table("Whose messages were dropped or refused, since the broker started",
      [["Client"], ["Cause", "long"], ["Messages", "number"], ["Last"]], rows, "Nobody's."));
  };
  root.append(make("div", { className: "buttons" }, button("Refresh", refresh, "plain")), shown);
  await refresh();
}
