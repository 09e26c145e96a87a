// What the broker does, once a second, for whichever view is shown; and whether the broker is there.

import { events } from "./api.js";

const RETRY_MS = 1000;
const SILENT_MS = 5000; // without an event: what is on the screen is no longer true
export const KEPT = 300; // events

export const history = [];
const listeners = new Set();

function setState(text, kind) {
  const line = document.getElementById("state");
  line.textContent = text;
  line.className = kind;
}

export function onEvent(listener, signal) {
  listeners.add(listener);
  signal.addEventListener("abort", () => listeners.delete(listener));
  if (history.length) listener(history.at(-1));
}

async function follow() {
  const silence = new AbortController();
  let timer;
  const rewind = () => {
    clearTimeout(timer);
    timer = setTimeout(() => silence.abort(), SILENT_MS);
  };
  try {
    for await (const event of events("/api/v1/events", silence.signal)) {
      rewind();
      setState("live", "good");
      history.push(event);
      if (history.length > KEPT) history.shift();
      for (const listener of listeners) listener(event);
    }
  } finally {
    clearTimeout(timer);
  }
}

export async function run() {
  for (;;) {
    try {
      await follow();
      setState("the broker has ended the connection; trying again", "bad");
    } catch (error) {
      const why = error.status ? error.message : "no connection to the broker";
      setState(`${why}; trying again`, "bad");
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}
