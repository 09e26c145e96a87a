// Which view is shown: what stands after # in the address, so that links and the browser's buttons work.

import { make, say } from "./dom.js";
import { run } from "./live.js";
import * as overview from "./overview.js";
import * as clients from "./clients.js";
import * as sessions from "./sessions.js";
import * as topics from "./topics.js";
import * as tryOut from "./try_out.js";
import * as losses from "./losses.js";
import * as streams from "./streams.js";
import * as bridges from "./bridges.js";

const VIEWS = {
  overview: ["Overview", overview],
  clients: ["Clients", clients],
  sessions: ["Sessions", sessions],
  topics: ["Topics", topics],
  "try-out": ["Try out", tryOut],
  losses: ["Losses", losses],
  streams: ["Streams", streams],
  bridges: ["Bridges", bridges],
};

let leaving = new AbortController();

async function show() {
  const [name, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const known = name in VIEWS ? name : "overview";
  const [title, view] = VIEWS[known];
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#/${known}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${title} – TideMQ`;
  say("");
  const root = make("div");
  const main = document.getElementById("view");
  main.replaceChildren(make("h1", {}, title), root);
  try {
    await view.show(root, signal, decodeURIComponent(rest.join("/")));
  } catch (error) {
    if (!signal.aborted) say(error.message, true);
  }
}

document.getElementById("views").append(
  ...Object.entries(VIEWS).map(([name, [title]]) => make("a", { href: `#/${name}` }, title)));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address names the view
  document.getElementById("view").focus();
});
addEventListener("hashchange", show);
run();
show();
