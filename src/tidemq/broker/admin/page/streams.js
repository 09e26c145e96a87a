import { ask } from "./api.js";
import { bytes, count, date, make, table } from "./dom.js";

export async function show(root) {
  let streams;
  try {
    streams = await ask("GET", "/streams");
  } catch (error) {
    if (error.status !== 404) throw error;
    root.append(make("p", {}, "This broker has no streams: its store is in memory."));
    return;
  }
  const rows = streams.map((each) => [each.name, make("span", { className: "mono" }, each.filters.join(", ")),
    count(each.next_offset - each.first_offset), bytes(each.bytes), each.last_us && date(each.last_us / 1000)]);
  root.append(table(`Streams (${streams.length})`,
    [["Name"], ["Topic filters", "long"], ["Messages", "number"], ["Size", "number"], ["Last"]], rows,
    "There are none. A stream keeps messages for the pipeline."));
}
