// Publish a message, see who would get it, and see what comes on a filter.

import { ask, events } from "./api.js";
import { button, date, field, make, payload, say, table } from "./dom.js";
import { link } from "./client.js";

const SHOWN = 100;

function publishing(root) {
  const topic = make("input", { name: "topic", required: true });
  const text = make("textarea", { name: "payload" });
  const qos = make("select", { name: "qos" }, ...["0", "1", "2"].map((each) => make("option", {}, each)));
  const retain = make("input", { type: "checkbox", name: "retain" });
  const who = make("div");
  const form = make("form", { className: "row" }, field("Topic", topic, "topic"), field("QoS", qos),
    field("Retain", retain, "beside"), field("Payload", text, "wide"), make("button", {}, "Publish"),
    button("Who would get it?", async () => {
      const found = await ask("GET", "/api/v1/subscriptions", { query: { topic: topic.value } });
      const rows = found.subscribers.map((each) => [each.client_id ? link(each.client_id) : each.kind,
        make("span", { className: "mono" }, each.topic_filter), String(each.qos), each.connected ? "yes" : "no"]);
      who.replaceChildren(table(`Would get ${topic.value}${found.cursor ? " (the first ones)" : ""}`,
        [["Client"], ["Its filter", "long"], ["QoS"], ["Connected"]], rows, "Nobody."));
    }, "plain"));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    try {
      const body = { topic: topic.value, payload: text.value, qos: Number(qos.value), retain: retain.checked };
      const done = await ask("POST", "/api/v1/publish", { body });
      say(`Published on ${done.topic}: ${done.payload_bytes} bytes.`);
    } catch (error) {
      say(error.message, true);
    }
  });
  root.append(make("h2", {}, "Publish"), form, who);
}

function subscribing(root, signal) {
  const filter = make("input", { name: "topic_filter", value: "#", required: true });
  const rows = make("tbody");
  const state = make("p", { role: "status", className: "quiet" }, "not subscribed");
  let following = null;
  const stop = () => following?.abort();
  const follow = async () => {
    stop();
    const mine = following = new AbortController();
    rows.replaceChildren();
    try {
      const query = new URLSearchParams({ topic_filter: filter.value });
      state.textContent = `subscribed to ${filter.value}`;
      for await (const message of events(`/api/v1/messages?${query}`, mine.signal)) {
        if (message.ended) {
          say(message.ended, true);
          break;
        }
        rows.prepend(make("tr", {}, make("td", {}, date(message.at)),
          make("td", { className: "long mono" }, message.topic), make("td", {}, payload(message)),
          make("td", {}, `${message.qos}${message.retain ? ", retained" : ""}`)));
        while (rows.children.length > SHOWN) rows.lastChild.remove();
      }
    } catch (error) {
      if (!mine.signal.aborted) say(error.message, true);
    }
    if (following === mine) state.textContent = "not subscribed";
  };
  signal.addEventListener("abort", stop);
  const form = make("form", { className: "row" }, field("Topic filter", filter, "topic"), make("button", {}, "Subscribe"),
    button("Stop", async () => stop(), "plain"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    follow();
  });
  const heads = ["Came", "Topic", "Payload", "QoS"].map((text) => make("th", { scope: "col" }, text));
  const caption = "Messages, newest first";
  root.append(make("h2", {}, "Subscribe"), form, state,
    make("div", { className: "scrolls", tabIndex: 0, role: "region", ariaLabel: caption }, make("table", {},
      make("caption", {}, caption), make("thead", {}, make("tr", {}, ...heads)), rows)));
}

export async function show(root, signal) {
  publishing(root);
  subscribing(root, signal);
}
