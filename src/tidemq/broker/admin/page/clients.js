import { ask } from "./api.js";
import { link, showClient, state } from "./client.js";
import { bytes, count, date, field, make, seconds, table } from "./dom.js";
import { paged } from "./paging.js";

const HEADS = [["Client"], ["State"], ["User"], ["Address"], ["Listener"], ["Since"], ["Received", "number"],
  ["Sent", "number"], ["Waiting", "number"], ["Oldest", "number"]];

function rows(page) {
  return table(`Clients (${page.clients.length})`, HEADS, page.clients.map((client) => [
    link(client.client_id), state(client), client.username, client.address, client.listener,
    date(client.connected_since), bytes(client.bytes_received), bytes(client.bytes_sent),
    count(client.queued_messages), seconds(client.oldest_queued_s)]), "No client matches.");
}

export async function show(root, signal, clientId) {
  if (clientId) {
    await showClient(root, signal, clientId);
    return;
  }
  const option = (text, value) => make("option", { value }, text);
  await paged(root, {
    fields: [
      field("Identifier begins with", make("input", { name: "prefix" })),
      field("Address", make("input", { name: "address" })),
      field("User", make("input", { name: "username" })),
      field("Listener", make("input", { name: "listener" })),
      field("State", make("select", { name: "connected" }, option("any", ""), option("connected", "true"),
        option("away", "false"))),
    ],
    load: (query, cursor) => ask("GET", "/api/v1/clients", { query: { ...query, cursor, limit: 50 } }),
    show: rows,
  });
}
