// One client: what is known of it, its subscriptions, what waits for it, and what may be done.

import { ask, path } from "./api.js";
import { button, bytes, confirmed, count, date, facts, make, payload, say, seconds, table } from "./dom.js";

export function link(clientId) {
  return make("a", { href: `#/clients/${path(clientId)}` }, clientId);
}

export function state(client) {
  if (!client.connected) return "away";
  if (client.slow) return make("span", { className: "bad" }, "slow");
  return client.paused ? make("span", { className: "bad" }, "paused") : make("span", { className: "good" }, "connected");
}

function lastDisconnect(last) {
  if (!last) return "none since the broker started";
  return `${date(last.at)}: ${last.reason}${last.fault ? `: ${last.fault}` : ""}`;
}

function described(client) {
  return facts([
    ["State", state(client)],
    ["User", client.username],
    ["Address", client.address],
    ["Listener", client.listener],
    ["Protocol", client.protocol_version && `MQTT ${client.protocol_version}`],
    ["Connected since", date(client.connected_since)],
    ["Last disconnected", lastDisconnect(client.last_disconnect)],
    ["Keep alive", seconds(client.keep_alive_s)],
    ["Session expiry", client.session_expiry_s === null ? "never" : seconds(client.session_expiry_s)],
    ["Session ends", date(client.session_ends)],
    ["Waiting messages", `${count(client.queued_messages)} (${bytes(client.queued_bytes)})`],
    ["Oldest waits", seconds(client.oldest_queued_s)],
    ["In flight", client.in_flight_max ? `${client.in_flight} of ${client.in_flight_max}` : count(client.in_flight)],
    ["Received", `${bytes(client.bytes_received)}, ${count(client.messages_received)} messages`],
    ["Sent", bytes(client.bytes_sent)],
    ["Not yet taken by its socket", bytes(client.output_bytes)],
    ["Will", client.has_will ? "yes" : "no"],
    ["Reactor", String(client.reactor)],
  ]);
}

function subscriptions(client) {
  const rows = client.subscription_list.map((each) => [make("span", { className: "mono" }, each.topic_filter),
    String(each.qos), each.no_local ? "yes" : "no", each.subscription_id ? String(each.subscription_id) : null]);
  const more = client.more_subscriptions ? ", and more" : "";
  return table(`Subscriptions (${client.subscriptions}${more})`,
    [["Topic filter", "long"], ["QoS"], ["No local"], ["Identifier"]], rows);
}

function messages(found) {
  const rows = found.messages.map((each) => [make("span", { className: "mono" }, each.topic), payload(each),
    bytes(each.payload_bytes), String(each.qos), date(each.at), each.place]);
  return table(`Waiting messages, oldest first${found.cursor ? " (the first ones)" : ""}`,
    [["Topic", "long"], ["Payload", "long"], ["Size", "number"], ["QoS"], ["Came"], ["Is"]], rows);
}

export async function showClient(root, signal, clientId) {
  const at = path(clientId);
  const shown = make("div");
  const refresh = async () => {
    let client;
    try {
      client = await ask("GET", `/api/v1/clients/${at}`);
    } catch (error) {
      if (error.status !== 404) throw error;
      shown.replaceChildren(make("p", {}, "There is no such client, and no session of it."));
      return;
    }
    const parts = [described(client), make("h2", {}, "Subscriptions"), subscriptions(client)];
    try {
      parts.push(make("h2", {}, "Queue"), messages(await ask("GET", `/api/v1/queues/${at}`)));
    } catch (error) {
      parts.push(make("p", { className: "quiet" }, error.message)); // the role does not allow it
    }
    if (!signal.aborted) shown.replaceChildren(...parts);
  };
  const act = (text, question, method, where, done) => button(text, async () => {
    if (!(await confirmed(question))) return;
    say(done(await ask(method, where)));
    await refresh();
  }, "risky");
  root.append(
    make("h2", { className: "mono" }, clientId),
    make("div", { className: "buttons" },
      button("Refresh", refresh, "plain"),
      act("Disconnect", `End the connection of ${clientId}? Its session stays.`, "DELETE", `/api/v1/clients/${at}`,
        () => "The connection is being ended."),
      act("Purge queue", `Drop the messages that wait for ${clientId}? They are lost.`, "DELETE",
        `/api/v1/queues/${at}`, (answer) => `${answer.messages} messages were dropped.`),
      act("End session", `End the session of ${clientId}, with its subscriptions and messages?`, "DELETE",
        `/api/v1/sessions/${at}`, () => "The session is being ended.")),
    shown);
  await refresh();
}
