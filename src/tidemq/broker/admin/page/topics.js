// Retained messages as a tree of topics, of what matches a filter; and cleared.

import { ask } from "./api.js";
import { button, bytes, confirmed, count, date, field, make, payload, say } from "./dom.js";

const SHOWN = 500;
const OPEN_MAX = 40; // topics: a small tree is shown whole

function grown(messages) {
  const root = new Map();
  for (const message of messages) {
    let level = root;
    const parts = message.topic.split("/");
    parts.forEach((part, at) => {
      if (!level.has(part)) level.set(part, { below: new Map(), message: null });
      const node = level.get(part);
      if (at === parts.length - 1) node.message = message;
      level = node.below;
    });
  }
  return root;
}

function value(message) {
  return make("span", { className: "value" }, payload(message),
    make("span", { className: "quiet" }, ` ${bytes(message.payload_bytes)}, ${date(message.at)}`));
}

function tree(level, isOpen) {
  const items = [...level].sort(([one], [other]) => (one < other ? -1 : 1)).map(([part, node]) => {
    const name = make("span", { className: "mono" }, part || "(empty)");
    const here = node.message ? value(node.message) : null;
    if (!node.below.size) return make("li", {}, name, here);
    return make("li", {}, make("details", { open: isOpen }, make("summary", {}, name, here), tree(node.below, isOpen)));
  });
  return make("ul", { className: "tree" }, ...items);
}

export async function show(root) {
  const filter = make("input", { name: "topic_filter", value: "#", required: true });
  const form = make("form", { className: "row" }, field("Topic filter", filter, "topic"), make("button", {}, "Show"));
  const shown = make("div");
  const refresh = async () => {
    const topicFilter = filter.value;
    const [page, all] = await Promise.all([
      ask("GET", "/api/v1/retained", { query: { topic_filter: topicFilter, limit: SHOWN } }),
      ask("GET", "/api/v1/retained/count", { query: { topic_filter: topicFilter } }),
    ]);
    const some = page.cursor ? `; ${page.messages.length} are shown: choose a narrower filter for others` : "";
    shown.replaceChildren(
      make("p", { role: "status" }, `${count(all.messages)} retained messages, ${bytes(all.payload_bytes)}${some}`),
      make("div", { className: "scrolls" }, tree(grown(page.messages), page.messages.length <= OPEN_MAX)));
  };
  const clear = async () => {
    const query = { topic_filter: filter.value };
    const { messages } = await ask("GET", "/api/v1/retained/count", { query });
    if (!(await confirmed(`Remove ${messages} retained messages that match ${filter.value}?`))) return;
    const done = await ask("DELETE", "/api/v1/retained", { query: { ...query, messages_max: messages } });
    say(`${done.messages} retained messages were removed.`);
    await refresh();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    refresh().catch((error) => say(error.message, true));
  });
  root.append(form, shown, make("div", { className: "buttons" }, button("Remove those that match", clear, "risky")));
  await refresh();
}
