// A list that the API answers in pages: the filters above it, and First and Next.

import { button, make } from "./dom.js";

export async function paged(root, { fields, load, show }) {
  const form = make("form", { className: "row" }, ...fields, make("button", {}, "Show"));
  const rows = make("div");
  const note = make("p", { className: "quiet", role: "status" });
  let cursor = null;
  const turn = async (from) => {
    const page = await load(Object.fromEntries(new FormData(form)), from);
    cursor = page.cursor;
    rows.replaceChildren(show(page));
    note.textContent = cursor === null ? "There are no more." : "";
    next.disabled = cursor === null;
  };
  const first = button("First page", () => turn(null), "plain");
  const next = make("button", { type: "button", className: "plain" }, "Next page");
  const guarded = async (from) => {
    try {
      await turn(from);
    } catch (error) {
      note.textContent = error.message;
    }
  };
  next.addEventListener("click", () => guarded(cursor));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    guarded(null);
  });
  root.append(form, rows, note, make("div", { className: "buttons" }, first, next));
  await turn(null);
  return () => guarded(null);
}
