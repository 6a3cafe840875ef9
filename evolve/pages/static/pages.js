// Functions of the pages: sorting, filtering and saving tables, copying code, choosing a page of a one-file report, and
// updates while a run writes. All content can be read without this script.
"use strict";
(() => {
  const status = document.getElementById("status");
  const say = (words) => { status.textContent = words; };

  // Pages of a one-file report: the hash names the page.
  const pages = [...document.querySelectorAll("section.page")];
  const titled = document.title;
  function readable(address) {
    try { return decodeURI(address); } catch { return address; }
  }
  function choose() {
    const wanted = readable(location.hash.replace(/^#(content$|\/?)/, "")) || "/";
    const named = (page) => page.dataset.page.split(" ").map(readable);
    const found = pages.find((page) => named(page).includes(wanted));
    const chosen = found || pages[0];
    say(found ? "" : "this file does not have that page");
    for (const page of pages) page.hidden = page !== chosen;
    document.title = `${chosen.dataset.title} · ${titled}`;
    enhance(chosen);
    scrollTo(0, 0);
  }

  // Tables.
  const value = (cell) => {
    const text = cell ? cell.textContent.trim() : "";
    const number = parseFloat(text.replace(/[,$<]/g, ""));
    return cell && cell.classList.contains("n") && !Number.isNaN(number) ? number : text;
  };
  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    // Cells without a number come last in descending order.
    if (typeof a !== typeof b) return typeof a === "number" ? 1 : -1;
    return a.localeCompare(b);
  }
  function sort(table, column, descending) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    rows.sort((a, b) => (descending ? -1 : 1) * compare(value(a.cells[column]), value(b.cells[column])));
    body.append(...rows);
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      if (place === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    table.dataset.sorted = `${column} ${descending ? 1 : 0}`;
  }
  function filter(table, words, counter) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !wanted.every((word) => text.includes(word));
      shown += row.hidden ? 0 : 1;
    }
    table.dataset.filter = words;
    counter.textContent = wanted.length ? `${shown} of ${table.tBodies[0].rows.length} rows` : "";
  }
  function csv(table) {
    const quoted = (cell) => {
      let text = cell.textContent.trim().replace(/\s+/g, " ");
      if (cell.classList.contains("n") && /^\$?[\d,]+(\.\d+)?x?$/.test(text)) text = text.replace(/[$,x]/g, "");
      // A spreadsheet would run text that begins like a formula.
      if (/^[=+@\t]/.test(text) || /^-[^\d.]/.test(text)) text = `'${text}`;
      return `"${text.replace(/"/g, '""')}"`;
    };
    const rows = [table.tHead.rows[0], ...[...table.tBodies[0].rows].filter((row) => !row.hidden)];
    return rows.map((row) => [...row.cells].map(quoted).join(",")).join("\r\n") + "\r\n";
  }
  function save(name, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
  function button(words, action) {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = words;
    made.addEventListener("click", action);
    return made;
  }
  function equip(table) {
    table.dataset.ready = "1";
    const name = table.dataset.name;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const numeric = head.classList.contains("n");
      const words = head.textContent;
      head.textContent = "";
      head.append(button(words, () => {
        const [last, down] = (table.dataset.sorted || "-1 0").split(" ").map(Number);
        sort(table, column, last === column ? !down : numeric);
      }));
    });
    const tools = document.createElement("div");
    tools.className = "tools";
    const counter = document.createElement("span");
    counter.setAttribute("role", "status");
    if (table.tBodies[0].rows.length > 4) {
      const field = document.createElement("input");
      field.type = "search";
      field.placeholder = "filter rows";
      field.setAttribute("aria-label", `Filter rows: ${table.caption.textContent.trim()}`);
      field.addEventListener("input", () => filter(table, field.value, counter));
      tools.append(field, counter);
    }
    tools.append(button("CSV", () => save(`${name}.csv`, csv(table))));
    tools.lastChild.setAttribute("aria-label", `Save as CSV: ${table.caption.textContent.trim()}`);
    table.closest(".table").before(tools);
  }

  // Code.
  async function copy(from) {
    const box = from.parentElement.querySelector(from.dataset.copies);
    try {
      await navigator.clipboard.writeText(box.textContent);
      from.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(box);
      from.textContent = "Press Ctrl-C";
    }
    setTimeout(() => { from.textContent = "Copy"; }, 2000);
  }
  function enhance(root) {
    for (const table of root.querySelectorAll("table.data")) if (!table.dataset.ready) equip(table);
    for (const found of root.querySelectorAll("button.copy")) {
      if (!found.dataset.ready) found.addEventListener("click", () => copy(found));
      found.dataset.ready = "1";
    }
  }

  // Live content: the server says that the archive has changed, and the parts of this page that differ are replaced.
  function carryOver(before, after) {
    const tables = new Map([...before.querySelectorAll("table.data")].map((table) => [table.dataset.name, table]));
    for (const table of after.querySelectorAll("table.data")) {
      const old = tables.get(table.dataset.name);
      if (!old) continue;
      const field = old.closest(".table").previousElementSibling.querySelector("input");
      if (old.dataset.sorted) sort(table, ...old.dataset.sorted.split(" ").map(Number));
      if (field && field.value) {
        const fresh = table.closest(".table").previousElementSibling.querySelector("input");
        if (fresh) { fresh.value = field.value; fresh.dispatchEvent(new Event("input")); }
      }
    }
  }
  async function refresh() {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    const now = document.getElementById("content");
    const then = fresh.getElementById("content");
    const names = (main) => [...main.querySelectorAll("[data-part]")].map((part) => part.dataset.part).join();
    if (names(now) !== names(then) || !names(now)) {
      replace(now, then);
      return;
    }
    for (const part of now.querySelectorAll("[data-part]")) {
      replace(part, then.querySelector(`[data-part="${CSS.escape(part.dataset.part)}"]`));
    }
  }
  function remember() {  // so that the first change replaces only the parts that differ from the loaded page
    const content = document.getElementById("content");
    const parts = content.querySelectorAll("[data-part]");
    for (const part of parts.length ? parts : [content]) part.dataset.text = part.innerHTML;
  }
  function replace(part, found) {
    const text = found.innerHTML;
    const field = document.activeElement;
    if (part.dataset.text === text || (part.contains(field) && field.matches("input"))) return;  // being typed
    const opened = [...part.querySelectorAll("details")].map((one) => one.open);
    const scrolled = [...part.querySelectorAll(".scroll")].map((one) => one.scrollTop);
    const before = part.cloneNode(false);
    before.append(...part.childNodes);
    part.replaceChildren(...document.importNode(found, true).childNodes);
    const details = [...part.querySelectorAll("details")];
    if (details.length === opened.length) details.forEach((one, place) => { one.open = opened[place]; });
    [...part.querySelectorAll(".scroll")].forEach((one, place) => { one.scrollTop = scrolled[place] || 0; });
    enhance(part);
    carryOver(before, part);
    part.dataset.text = text;
  }
  function listen() {
    // A browser allows only a few connections to one server, so hidden tabs close theirs.
    let source = null;
    let busy = false;
    let again = false;
    async function update() {
      again = busy;
      if (busy) return;
      busy = true;
      await refresh().catch(() => {});
      busy = false;
      say(`updated ${new Date().toLocaleTimeString()}`);
      if (again) update();
    }
    function connect() {
      if (source || document.hidden) return;
      source = new EventSource("/events");
      source.addEventListener("open", () => say("live"));
      source.addEventListener("error", () => say("no connection"));
      source.addEventListener("changed", update);
    }
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) {
        if (source) source.close();
        source = null;
      } else {
        connect();
        update();
      }
    });
    connect();
  }

  if (pages.length) {
    addEventListener("hashchange", () => {
      if (location.hash === "#content") return;  // the link that skips the heading
      choose();
      document.getElementById("content").focus();
    });
    choose();
  } else {
    if (document.body.dataset.live) remember();
    enhance(document);
  }
  if (document.body.dataset.live) listen();
})();
