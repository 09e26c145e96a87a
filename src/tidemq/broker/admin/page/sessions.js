import { ask } from "./api.js";
import { bytes, count, date, field, make, seconds, table } from "./dom.js";
import { link } from "./client.js";
import { paged } from "./paging.js";

const HEADS = [["Client"], ["Waiting", "number"], ["Bytes", "number"], ["Oldest", "number"],
  ["Subscriptions", "number"], ["Session ends"], ["Last disconnected", "long"]];

function rows(page) {
  return table(`Sessions whose clients are away (${page.clients.length})`, HEADS, page.clients.map((each) => [
    link(each.client_id), count(each.queued_messages), bytes(each.queued_bytes), seconds(each.oldest_queued_s),
    count(each.subscriptions), each.session_ends ? date(each.session_ends) : "never",
    each.last_disconnect && `${date(each.last_disconnect.at)}: ${each.last_disconnect.reason}`,
  ]), "No session waits for its client.");
}

export async function show(root) {
  await paged(root, {
    fields: [field("Identifier begins with", make("input", { name: "prefix" }))],
    load: (query, cursor) =>
      ask("GET", "/api/v1/clients", { query: { ...query, connected: "false", cursor, limit: 50 } }),
    show: rows,
  });
}
