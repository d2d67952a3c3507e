// What a reader does with the page: opens a cell, reads its flipped samples, filters them. Every text of a sample becomes a text node
// and nothing else. Without this script all cells stand below one another.
"use strict";
{
  const SHOWN = 20; // samples at a time
  const MARKS = { lost: "▼ lost", gained: "▲ gained" };
  const byId = (id) => document.getElementById(id);

  const make = (tag, className, ...children) => {
    const node = document.createElement(tag);
    if (className) node.className = className;
    node.append(...children); // of strings: text nodes
    return node;
  };

  document.documentElement.classList.add("js");

  // --- Cells ---

  const place = (hash) => history.replaceState(null, "", location.href.split("#")[0] + hash);

  const openCell = (hash) => {
    const cell = hash.startsWith("#cell-") ? byId(hash.slice(1)) : null;
    if (!cell) return;
    if (!cell.open) cell.showModal(); // closing it gives the focus back to where it was
    cell.scrollTop = 0;
    place(hash);
  };

  for (const cell of document.querySelectorAll("dialog.cell")) {
    cell.addEventListener("close", () => place(""));
    cell.addEventListener("click", (event) => {
      if (event.target === cell) cell.close(); // beside what it shows
    });
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("a");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const hash = link.getAttribute("href");
    if (hash.startsWith("#cell-")) {
      event.preventDefault();
      openCell(hash);
    } else if (link.dataset.strategy) {
      event.preventDefault();
      link.closest("dialog").close();
      choose({ strategy: link.dataset.strategy, task: link.dataset.task });
    }
  });

  window.addEventListener("hashchange", () => openCell(location.hash));
  window.addEventListener("beforeprint", () => document.querySelector("dialog[open]")?.close());

  // --- Samples ---

  const form = byId("filters");
  const status = byId("found");
  const list = byId("rows");
  const [back, on] = ["back", "on"].map(byId);
  const unpacked = new Map();
  let rows = [];
  let first = 0;
  let latest = 0; // request; an older one that ends later shows nothing

  const unpack = async (chunk) => {
    const bytes = Uint8Array.from(atob(chunk.textContent), (sign) => sign.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    chunk.dataset.unpacked = "";
    return JSON.parse(await new Response(stream).text());
  };

  const samplesOf = (chunk) => {
    if (!unpacked.has(chunk)) unpacked.set(chunk, unpack(chunk));
    return unpacked.get(chunk);
  };

  const find = async () => {
    const request = ++latest;
    const wanted = [...new FormData(form)].filter(([, value]) => value);
    const fits = (known) => wanted.every(([name, value]) => !(name in known) || known[name] === value);
    status.textContent = "Reading …";
    try {
      const chunks = [...document.querySelectorAll("script.chunk")].filter((chunk) => fits(chunk.dataset));
      const found = (await Promise.all(chunks.map(samplesOf))).flat().filter(fits);
      if (request !== latest) return;
      [rows, first] = [found, 0];
      draw();
    } catch (error) {
      status.textContent = `This browser cannot unpack the samples (${error.message}); records.parquet has them.`;
    }
  };

  const choose = (wanted) => {
    form.reset();
    for (const [name, value] of Object.entries(wanted)) form.querySelector(`[name=${name}]`).value = value;
    byId("samples").scrollIntoView();
    byId("samples-title").focus();
    find();
  };

  const draw = () => {
    const page = rows.slice(first, first + SHOWN);
    const places = rows.length > SHOWN ? `, ${first + 1} to ${first + page.length} shown` : "";
    status.textContent = `${rows.length.toLocaleString("en")} sample${rows.length === 1 ? "" : "s"}${places}`;
    list.replaceChildren(...page.map(card));
    back.parentNode.hidden = rows.length <= SHOWN;
    back.disabled = first === 0;
    on.disabled = first + SHOWN >= rows.length;
  };

  const turn = (by) => {
    first += by;
    draw();
    status.focus();
  };

  const card = (row) => {
    const [before, after] = marked(row.baseline_text, row.text);
    return make(
      "article",
      `flip ${row.kind}`,
      make("h3", "", make("span", "mark", MARKS[row.kind]), ` ${row.sample_id}`),
      make("p", "quiet", `${row.strategy} on ${row.task}: ${row.facts}`),
      make("dl", "", make("dt", "", "expected"), make("dd", "", make("code", "", row.expected)), ...context(row)),
      make("div", "sides", side("Full cache", row.baseline_answer, before), side("Strategy", row.answer, after)),
      ...(row.error ? [make("p", "", "Error: ", make("code", "", row.error))] : []),
    );
  };

  const context = (row) => {
    if (!row.excerpt) return [];
    const at = row.excerpt.indexOf(row.expected);
    const parts = at < 0 ? [row.excerpt] : [row.excerpt.slice(0, at), make("mark", "", row.expected), row.excerpt.slice(at + row.expected.length)];
    return [make("dt", "", "in its context"), make("dd", "", make("pre", "", ...parts))];
  };

  const side = (title, answer, text) =>
    make("section", "", make("h4", "", title), make("p", "", "answer: ", make("code", "", answer)), make("pre", "", ...text));

  // --- What differs ---

  // Two texts as nodes, with the words that the other does not have in the same order in del and ins.
  const marked = (left, right) => {
    const [a, b] = [left, right].map((text) => text.match(/\s+|\S+/g) ?? []);
    const [inA, inB] = common(a, b);
    return [spans(a, inA, "del"), spans(b, inB, "ins")];
  };

  // Of two lists of words, which of each are in their longest common subsequence.
  const common = (a, b) => {
    const width = b.length + 1;
    const longest = new Uint16Array((a.length + 1) * width); // of what follows both places
    for (let i = a.length - 1; i >= 0; i--)
      for (let j = b.length - 1; j >= 0; j--)
        longest[i * width + j] =
          a[i] === b[j] ? longest[(i + 1) * width + j + 1] + 1 : Math.max(longest[(i + 1) * width + j], longest[i * width + j + 1]);
    const [inA, inB] = [a.map(() => false), b.map(() => false)];
    for (let i = 0, j = 0; i < a.length && j < b.length; )
      if (a[i] === b[j]) inA[i++] = inB[j++] = true;
      else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) i++;
      else j++;
    return [inA, inB];
  };

  const spans = (words, kept, tag) => {
    const nodes = [];
    for (let start = 0, end; start < words.length; start = end) {
      for (end = start; end < words.length && kept[end] === kept[start]; end++);
      const text = words.slice(start, end).join("");
      nodes.push(kept[start] ? text : make(tag, "", text));
    }
    return nodes;
  };

  form?.addEventListener("change", find);
  form?.addEventListener("submit", (event) => {
    event.preventDefault();
    find();
  });
  back?.addEventListener("click", () => turn(-SHOWN));
  on?.addEventListener("click", () => turn(SHOWN));
  openCell(location.hash);
}
